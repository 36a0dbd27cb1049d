"""The engine's answers to what it is asked between two steps, each led to whoever asked."""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

from gateway.engine.engine_client import EngineDeadError


class _Numbered(Protocol):
    @property
    def request_id(self) -> int: ...


A = TypeVar("A", bound=_Numbered)


class EngineAnswers(Generic[A]):
    """Every engine client has one per kind of question."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[A]] = {}  # by request id

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait_for(self, request_id: int, timeout_seconds: float) -> A:
        """Raises TimeoutError, and EngineDeadError if the engine dies first."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        try:
            async with asyncio.timeout(timeout_seconds):
                return await answer
        finally:
            del self._waiting[request_id]

    def dispatch(self, found: A) -> None:
        """An answer that nobody waits for any longer is dropped."""
        answer = self._waiting.get(found.request_id)
        if answer is not None and not answer.done():
            answer.set_result(found)

    def fail_all(self, message: str) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(EngineDeadError(message))
