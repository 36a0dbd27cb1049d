"""How fast files come in while somebody waits for tokens.

A file of megabytes comes as fast as the event loop takes it, and the loop would take a core for it: that of a kernel
thread, and every token of everybody would come later by as much. So while answers are being generated, all uploads
together take a small part of the loop; whoever sends them waits in TCP. Small files are taken at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gateway.base.token_bucket import TokenBucket

BYTES_PER_SECOND = 8 * 2**20  # a slow core's loop takes some 200 MiB
BURST_BYTES = 2**20


class UploadPace:
    """Belongs to one event loop."""

    def __init__(
        self,
        is_busy: Callable[[], bool],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """is_busy: somebody waits for tokens."""
        self._is_busy, self._clock, self._sleep = is_busy, clock, sleep
        self._bucket = TokenBucket(BYTES_PER_SECOND, BURST_BYTES)

    async def take(self, num_bytes: int) -> None:
        """After so many bytes came in. Returns when more may."""
        if not self._is_busy():
            return
        self._bucket.take(num_bytes)
        while self._is_busy() and (seconds := self._bucket.seconds_until_free(self._clock())):
            await self._sleep(seconds)
