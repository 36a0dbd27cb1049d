"""Events per second, of late: an average whose weights halve with age. Time is an argument."""

from __future__ import annotations

import math


class RateMeter:
    def __init__(self, half_life_seconds: float) -> None:
        self._decay = math.log(2.0) / half_life_seconds
        self._events = 0.0  # decayed
        self._seconds = 0.0  # observed, decayed likewise
        self._at: float | None = None

    def advance(self, now: float, is_counting: bool = True) -> None:
        """Time passes. Not counting: the time is left out, as if it had not been."""
        if self._at is not None and now > self._at and is_counting:
            keep = math.exp(-self._decay * (now - self._at))
            self._events *= keep
            self._seconds = self._seconds * keep + (1.0 - keep) / self._decay
        self._at = now

    def add(self, num_events: float) -> None:
        """At the time of the last advance()."""
        self._events += num_events

    @property
    def per_second(self) -> float | None:
        """None before there was anything to measure."""
        return self._events / self._seconds if self._events and self._seconds else None
