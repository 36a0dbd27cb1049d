"""The engine's answers to advisories, each led to whoever asked. Every engine client has one."""

from __future__ import annotations

import asyncio

from gateway.engine_client import EngineDeadError
from schedcore.types import SessionState


class SessionAnswers:
    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[SessionState]] = {}  # by request id

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait_for(self, request_id: int, timeout_seconds: float) -> SessionState:
        """Raises TimeoutError, and EngineDeadError if the engine dies first."""
        answer: asyncio.Future[SessionState] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        try:
            async with asyncio.timeout(timeout_seconds):
                return await answer
        finally:
            del self._waiting[request_id]

    def dispatch(self, state: SessionState) -> None:
        """An answer that nobody waits for any longer is dropped."""
        answer = self._waiting.get(state.request_id)
        if answer is not None and not answer.done():
            answer.set_result(state)

    def fail_all(self, message: str) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(EngineDeadError(message))
