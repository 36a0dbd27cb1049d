"""How many observations fell where, as Prometheus wants it; and the bounds that times are sorted by."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LATENCY_SECONDS = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
)
LONG_SECONDS = (*LATENCY_SECONDS, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


class Histogram:
    """Counts per bucket, `bounds` being inclusive upper ends; one more bucket takes the rest."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @classmethod
    def sum_of(cls, parts: Sequence[Histogram]) -> Histogram:
        """REQUIRES: one part at least; all have the same bounds."""
        total = cls(parts[0].bounds)
        total.counts = [sum(counts) for counts in zip(*(part.counts for part in parts), strict=True)]
        total.sum = sum(part.sum for part in parts)
        return total

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times
