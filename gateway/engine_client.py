"""Seam 6: the only place that knows where an engine lives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from schedcore.types import Advisory, EngineInfo, EngineRequest, EngineStats, TokenDelta


class EngineDeadError(Exception):
    """The engine is gone or was never ready; the message says why."""


class EngineClient(Protocol):
    """One engine, wherever it lives."""

    @property
    def info(self) -> EngineInfo:
        """Raises EngineDeadError before the engine is ready."""

    @property
    def is_alive(self) -> bool:
        """Ready and answering."""

    def stream(self, request: EngineRequest) -> AsyncIterator[list[TokenDelta]]:
        """Submits the request and yields what arrives, several deltas at once if the reader is slow.

        The last delta has finish_reason != NONE, also if the engine dies (ErrorCode.ENGINE_DEAD). Leaving the
        iterator early aborts the request.
        """

    def abort(self, request_id: int) -> None:
        """Idempotent."""

    def advise(self, advisory: Advisory) -> None: ...

    def stats(self) -> EngineStats | None:
        """The last snapshot received."""
