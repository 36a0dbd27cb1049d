"""Rows with many choices or prompts are many requests: they must not fill the queue that all classes share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class RequestBudget:
    """Requests of rows in the engine. Whoever is larger than all of it goes alone."""

    def __init__(self, max_requests: int) -> None:
        self.num_requests = 0
        self.max_requests = max_requests
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def hold(self, num_requests: int) -> AsyncIterator[None]:
        """Waits for room."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_room(num_requests))
            self.num_requests += num_requests
        try:
            yield
        finally:
            self.num_requests -= num_requests
            await self._tell()

    def _has_room(self, num_requests: int) -> bool:
        return not self.num_requests or self.num_requests + num_requests <= self.max_requests

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
