"""One at a time: what passes takes turns of the event loop, so that sockets are looked at in between.

Many requests that become ready together would be handled in one turn, and tokens that arrive meanwhile would wait for
all of them. They still come one right after the other: code and data that are at hand take a fifth of the time.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turnstile:
    """Belongs to one event loop. First come, first served."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_turning = False

    async def turn(self) -> None:
        """Returns in a turn of the event loop in which nobody else passes."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append(future)
        if not self._is_turning:
            self._is_turning = True
            loop.call_soon(self._release)
        await future

    def _release(self) -> None:
        """Whoever is gone by now takes no turn."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                asyncio.get_running_loop().call_soon(self._release)
                return
        self._is_turning = False
