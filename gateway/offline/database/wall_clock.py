"""The time of day, for what ends or is deleted by it: a clock that was set wrong must not delete anybody's files.

The system's clock is followed as long as it agrees with one that nobody can set. Where it jumps, forward or back, time
goes on as if it had not, the log says so, and nothing ends on the jump's account. A clock that comes back is followed
again; one that was set right after the start is believed when the gateway is started again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

MAX_STEP_SECONDS = 600.0  # between two readings: corrections over the network, a machine that was moved
_REMIND_SECONDS = 3600.0

_log = logging.getLogger("hocket.offline")


def since_boot() -> float:
    """Seconds, also those that the machine slept; it cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class WallClock:
    """Call it: Unix seconds."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = since_boot) -> None:
        self.wall = wall  # as the system says, for what leaves the machine
        self.jump_seconds = 0.0  # that the system's clock is ahead of this one
        self._steady = steady
        self._anchor = wall(), steady()  # one assignment: several threads read the clock
        self._said_at: float | None = None

    def __call__(self) -> float:
        wall, steady = self.wall(), self._steady()
        wall_then, steady_then = self._anchor
        expected = wall_then + (steady - steady_then)
        if abs(wall - expected) > MAX_STEP_SECONDS:
            self._hold(wall - expected, steady)
            return expected
        self._anchor = wall, steady
        self.jump_seconds, self._said_at = 0.0, None
        return wall

    def _hold(self, jump: float, steady: float) -> None:
        self.jump_seconds = jump
        if self._said_at is not None and steady < self._said_at + _REMIND_SECONDS:
            return
        self._said_at = steady
        _log.error(
            "The system's clock jumped by %.0f seconds: files and batches go on by the time before, nothing expires or "
            "is deleted for it. Set the clock right; if it is right now, start the gateway again",
            jump,
        )
