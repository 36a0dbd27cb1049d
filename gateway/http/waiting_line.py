"""Who waits, and since when, in that order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class WaitingLine(Generic[T]):
    """All may wait equally long, so those who came first have waited too long first. Every operation is O(1)."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[T, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[T]:
        """The longest waiting first."""
        return iter(self._since)

    def add(self, item: T, now: float) -> None:
        """At the end, also if it was in the line before. `now` never falls."""
        self._since.pop(item, None)
        self._since[item] = now

    def discard(self, item: T) -> None:
        self._since.pop(item, None)

    def since(self, item: T) -> float:
        return self._since[item]

    def take_expired(self, now: float) -> list[T]:
        """Those who have waited too long; they leave the line."""
        expired = []
        for item, since in self._since.items():
            if now < since + self._seconds:
                break
            expired.append(item)
        for item in expired:
            del self._since[item]
        return expired
