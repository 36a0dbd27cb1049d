"""Pauses that grow while something goes wrong again and again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    first: float  # seconds
    longest: float
    _next: float | None = None

    def pause(self) -> float:
        """The seconds to wait now; the next pause is twice as long."""
        seconds = self.first if self._next is None else self._next
        self._next = min(self.longest, 2 * seconds)
        return seconds

    def reset(self) -> None:
        self._next = None
