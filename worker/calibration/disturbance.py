"""What other processes use of the processor while we measure: a step that shared it says little of one alone."""

from __future__ import annotations

import time

import psutil  # type: ignore[import-untyped]

WINDOW_SECONDS = 0.25  # the system counts in ticks of 10 ms: shorter windows would be mostly rounding
DISTURBED_CORES = 0.15  # that others use, above which a window does not count


class Disturbance:
    """Measures windows, one after the other."""

    def __init__(self) -> None:
        self._last = self._read()

    def is_due(self) -> bool:
        """True once the window is long enough to be judged."""
        return time.perf_counter() - self._last[0] >= WINDOW_SECONDS

    def other_cores(self) -> float:
        """That others used on average since the last call; begins a new window."""
        last, self._last = self._last, self._read()
        wall, busy, own = (now - before for now, before in zip(self._last, last, strict=True))
        return max(0.0, busy - own) / max(wall, 1e-9)

    def was_disturbed(self) -> bool:
        """As other_cores()."""
        return self.other_cores() > DISTURBED_CORES

    def wait_until_quiet(self, timeout_seconds: float) -> None:
        """Until a window passes undisturbed, or the time is over; begins a new window."""
        deadline = time.perf_counter() + timeout_seconds
        self._last = self._read()
        while time.perf_counter() < deadline:
            time.sleep(WINDOW_SECONDS)
            if not self.was_disturbed():
                return

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Wall clock, seconds of all processors in use (stolen time included), and our own part of them."""
        times = psutil.cpu_times()
        # guest time is part of user time already
        idle = times.idle + getattr(times, "iowait", 0.0)
        idle += getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        return time.perf_counter(), sum(times) - idle, time.process_time()
