"""How a bench's other client stands behind the server that it shares cores with: what is felt is the server's work.

The system's idle class alone would not do: what runs in it keeps its core until the clock ticks, 4 ms at a time. Nor
would niceness: who wakes up often is let in often (docs/log/2026-11-23-long-gaps.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
from collections.abc import Coroutine
from typing import Any

from schedcore.api.time_slice import in_short_turns


class _Selector(selectors.DefaultSelector):
    """What the loop does between two waits is in short turns; it waits undisturbed."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = contextlib.ExitStack()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turns.close()
        try:
            return super().select(timeout)
        finally:
            self._turns.enter_context(in_short_turns())

    def close(self) -> None:
        self._turns.close()
        super().close()


def stand_back() -> None:
    """Of a whole process. It must share a session with the server: Linux shares a core among sessions first, and does
    not ask them of which class what runs in them is."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def run_behind(main: Coroutine[Any, Any, None]) -> None:
    """asyncio.run() in a process that stands back."""
    stand_back()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Selector())) as runner:
        runner.run(main)
