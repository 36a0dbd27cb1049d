"""Which node runs which rows of a batch: stretches of one order, in which rows that begin alike follow each other.

A stretch belongs to one node, which takes its rows from the front. A node whose stretch is empty takes what belongs to
nobody, its equal part among those that have nothing: so the whole order is dealt at the start. When nothing is left
that belongs to nobody, it steals the far half of the longest stretch. What a node leaves behind belongs to nobody.
Stretches are cut where neighbours have the least in common, as far as that is near: whole groups go, before one is
divided. With no nodes everything belongs to nobody, and is taken in order.

Positions are those in the order. Invariant: each is in one stretch, or taken. Pure.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

NEAR = 4  # a border may be as far from where it should be as one part in so many of what is cut


@dataclass(slots=True, eq=False)
class _Stretch:
    """What was put back, which goes first, and [begin, end)."""

    begin: int = 0
    end: int = 0
    returned: list[int] = field(default_factory=list)  # ascending

    def __len__(self) -> int:
        return len(self.returned) + self.end - self.begin

    @property
    def first(self) -> int:
        """REQUIRES: it is not empty."""
        return self.returned[0] if self.returned else self.begin

    def take(self, limit: int) -> list[int]:
        taken, self.returned = self.returned[:limit], self.returned[limit:]
        begin = self.begin
        self.begin = min(self.end, begin + limit - len(taken))
        return [*taken, *range(begin, self.begin)]


class Stretches:
    def __init__(self, length: int, shared: bytes = b"") -> None:
        """shared: of each position, how much it has in common with the one before it; empty: nobody knows."""
        self._shared = shared
        self._free = [_Stretch(0, length)]
        self._of: dict[str, _Stretch] = {}

    def __len__(self) -> int:
        return sum(map(len, self._free)) + sum(map(len, self._of.values()))

    def num_of(self, node: str | None) -> int:
        """Positions that the node has; None: that nobody has."""
        return sum(map(len, self._free)) if node is None else len(self._of[node])

    def set_nodes(self, names: Collection[str]) -> None:
        """Who there is, from now on."""
        for name in [name for name in self._of if name not in names]:
            self._free.append(self._of.pop(name))
        for name in names:
            self._of.setdefault(name, _Stretch())

    def take(self, node: str | None, limit: int) -> list[int]:
        """The next positions for the node, from its stretch; of another's, if that is empty. None of them: there are
        none. REQUIRES: it is one of those that there are; None, where there are none."""
        self._free = sorted((stretch for stretch in self._free if len(stretch)), key=lambda stretch: stretch.first)
        if node is None:
            return self._free[0].take(limit) if self._free else []
        own = self._of[node]
        if not len(own):
            own = self._of[node] = self._from_nobody() if self._free else self._stolen()
        return own.take(limit)

    def put_back(self, positions: Sequence[int], node: str | None) -> None:
        """They are taken again before others. node: that had taken them; it may be gone. REQUIRES: they were taken."""
        if node not in self._of and not self._free:
            self._free.append(_Stretch())
        stretch = self._free[0] if node is None or node not in self._of else self._of[node]
        for position in positions:
            bisect.insort(stretch.returned, position)

    def _from_nobody(self) -> _Stretch:
        longest = max(self._free, key=len)
        num_in_need = sum(not len(stretch) for stretch in self._of.values())
        length = longest.end - longest.begin
        part = len(longest) // num_in_need - len(longest.returned)
        if num_in_need == 1 or not 0 < part < length:
            self._free.remove(longest)
            return longest
        border = self._border(longest.begin + 1, longest.end - 1, longest.begin + part, length // NEAR)
        taken = _Stretch(longest.begin, border, longest.returned)
        longest.begin, longest.returned = border, []
        return taken

    def _stolen(self) -> _Stretch:
        longest = max(self._of.values(), key=len)
        half = (len(longest) + 1) // 2
        length = longest.end - longest.begin
        if not length:
            keep = len(longest.returned) - half
            longest.returned, stolen = longest.returned[:keep], longest.returned[keep:]
            return _Stretch(returned=stolen)
        wanted = max(longest.begin, longest.end - half)
        border = self._border(longest.begin, longest.end - 1, wanted, length // NEAR)
        stolen_range = _Stretch(border, longest.end)
        longest.end = border
        return stolen_range

    def _border(self, low: int, high: int, wanted: int, reach: int) -> int:
        """From low to high, where what is before and behind has the least in common, near the one that is wanted."""
        low, high = max(low, wanted - reach), min(high, wanted + reach)
        near = self._shared[low : high + 1]
        if not near:
            return wanted
        least, at = min(near), wanted - low
        before, behind = near.rfind(least, 0, at + 1), near.find(least, at)
        if before < 0 or (behind >= 0 and behind - at < at - before):
            return low + behind
        return low + before
