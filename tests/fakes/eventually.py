"""Waiting for what will happen, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def eventually(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Returns as soon as the condition holds; fails if it does not in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        assert loop.time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.002)


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """The same without an event loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)
