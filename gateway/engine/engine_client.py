"""Seam 6: the gateway and an engine, wherever it lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.engine.delta_stream import DeltaStream
from schedcore.api.types import Advisory, CacheReset, EngineInfo, EngineRequest, EngineStats, SessionState


class EngineDeadError(Exception):
    """The engine is gone or not yet ready; the message says why. `code`: engine_dead, starting or restarting."""

    def __init__(self, message: str, code: str = "engine_dead") -> None:
        super().__init__(message)
        self.code = code


class EngineClient(Protocol):
    """One engine, wherever it lives. What is not a coroutine returns at once."""

    @property
    def info(self) -> EngineInfo:
        """Raises EngineDeadError before the engine is ready and after it died."""

    @property
    def is_alive(self) -> bool:
        """Ready and answering."""

    @property
    def death(self) -> str | None:
        """Why the engine is gone; None while it starts or lives."""

    @property
    def trouble(self) -> str | None:
        """What of it does not serve, though the rest does, in a sentence; None: all of it serves."""

    @property
    def num_restarts(self) -> int:
        """How often it was started again."""

    async def start(self) -> None:
        """Returns when the engine is ready. Raises EngineDeadError if it dies before."""

    async def close(self) -> None:
        """Ends every open request and the engine. Idempotent."""

    def stream(self, requests: Sequence[EngineRequest]) -> DeltaStream:
        """Submits the requests of one connection and returns what will arrive for them.

        Every request gets exactly one final delta, also if the engine dies (ErrorCode.ENGINE_DEAD, ENGINE_HUNG).
        Closing the stream aborts what is still open. Raises EngineDeadError if the engine is not alive.
        """

    async def advise(self, advisory: Advisory) -> SessionState:
        """Tells the engine, and returns what it says of the session; it answers between two steps.

        Raises EngineDeadError, and TimeoutError if no answer comes in time: the engine may act on it all the same.
        """

    async def reset_prefix_cache(self, request_id: int) -> CacheReset:
        """Drops all of it that no request uses, between two steps. request_id: unique among those asked for.

        Raises EngineDeadError, and TimeoutError if no answer comes in time: the engine may do it all the same.
        """

    def stats(self) -> EngineStats | None:
        """The last snapshot received."""
