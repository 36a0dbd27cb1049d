"""Start-time fair queueing: each member's time advances by what it is served, and who is furthest behind goes first.

A member that has nothing to do keeps its time, and does not save up: when it returns, it is no further behind than the
one that is furthest behind among those who had work meanwhile. Pure.
"""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")


class FairClock(Generic[K]):
    def __init__(self) -> None:
        self._times: dict[K, float] = {}  # of everybody who ever joined and was not forgotten
        self._active: set[K] = set()
        self._floor = 0.0

    def join(self, member: K) -> None:
        """It has work to do. Idempotent."""
        if member not in self._active:
            self._raise_floor()
            self._times[member] = max(self._times.get(member, 0.0), self._floor)
            self._active.add(member)

    def leave(self, member: K) -> None:
        """It has nothing to do. Idempotent."""
        if member in self._active:
            self._raise_floor()
            self._active.discard(member)

    def forget(self, member: K) -> None:
        """It will not return."""
        self.leave(member)
        self._times.pop(member, None)

    def charge(self, member: K, amount: float) -> None:
        """Negative: what was charged too much comes back. No effect on somebody unknown."""
        if member in self._times:
            self._times[member] += amount

    def time(self, member: K) -> float:
        return self._times[member]

    @property
    def least(self) -> float:
        """Of those with work; 0 if there is nobody."""
        return min((self._times[member] for member in self._active), default=0.0)

    def _raise_floor(self) -> None:
        if self._active:
            self._floor = max(self._floor, self.least)
