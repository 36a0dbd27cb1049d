"""What happens when: events in order of time, and first come first served among those of one moment."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class EventQueue:
    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, time: float, happen: Callable[[], None]) -> None:
        """REQUIRES: time >= now."""
        heapq.heappush(self._events, (time, next(self._numbers), happen))

    def run(self, until: float) -> None:
        """What would happen later stays undone."""
        while self._events and self._events[0][0] < until:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        self.now = until


class Channel:
    """Bytes go one after the other, at one rate."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    def send(self, num_bytes: float, now: float) -> float:
        """When they are there."""
        self._free_at = max(self._free_at, now) + num_bytes / self._bytes_per_second
        return self._free_at
