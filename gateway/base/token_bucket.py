"""A budget that refills: so much per second, and so much at once. Time is an argument."""

from __future__ import annotations


class TokenBucket:
    """May fall into debt by one amount, so that an amount larger than the burst is not refused for ever."""

    __slots__ = ("_burst", "_level", "_per_second", "_updated_at")

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._level = burst
        self._updated_at: float | None = None

    def seconds_until_free(self, now: float) -> float:
        """0 if something may be taken now."""
        self._refill(now)
        return 0.0 if self._level > 0 else (1e-9 - self._level) / self._per_second

    def take(self, amount: float) -> None:
        """REQUIRES: seconds_until_free() was 0, or the caller has already done what it pays for."""
        self._level -= amount

    def _refill(self, now: float) -> None:
        if self._updated_at is not None and now > self._updated_at:
            self._level = min(self._burst, self._level + (now - self._updated_at) * self._per_second)
        self._updated_at = now
