"""Will a batch be done before its window ends, and how much of it must be treated as online work to get there?

    need      = work left / measured rate                      seconds that the rest takes as things go
    margin    = time left - need                               the metric; negative: late as things go
    pressure  = need / time left                               1: just in time, if nothing changes
    promoted share of the next rows = 0 up to pressure 0.7, 1 from pressure 1.0, linear in between

Before anything has been measured, the share of the window that has passed stands for the pressure: a batch that has
waited for most of its window without one finished row needs help, whatever its size. Pure; times are Unix seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PROMOTION_STARTS = 0.7  # pressure: a rate measured over a minute is off by some tens of percent
PROMOTION_IS_FULL = 1.0
MAX_WEIGHT = 4.0  # of a late batch among its tenant's


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one batch."""

    margin_seconds: float  # infinite while nothing is known
    pressure: float

    @property
    def promoted_share(self) -> float:
        """Of the rows that start now, those that go to the engine as online requests with loose targets."""
        share = (self.pressure - PROMOTION_STARTS) / (PROMOTION_IS_FULL - PROMOTION_STARTS)
        return min(1.0, max(0.0, share))

    @property
    def weight(self) -> float:
        """Its share of what its tenant gets, beside a batch that has time."""
        return 1.0 + (MAX_WEIGHT - 1.0) * self.promoted_share


def forecast(
    *, now: float, started_at: float, ends_at: float, num_left: int, rows_per_second: float | None
) -> Forecast:
    """num_left: rows that have not ended. rows_per_second: measured while it had rows in the engine, or None."""
    left = ends_at - now
    if num_left == 0:
        return Forecast(max(0.0, left), 0.0)
    if left <= 0:
        return Forecast(left, math.inf)
    if not rows_per_second:
        window = ends_at - started_at
        return Forecast(math.inf, min(1.0, max(0.0, 1.0 - left / window)) if window > 0 else 1.0)
    need = num_left / rows_per_second
    return Forecast(left - need, need / left)


class Dither:
    """Turns a share into yes and no, evenly: of n answers at share s, n * s are yes, give or take one."""

    def __init__(self) -> None:
        self._owed = 0.0

    def next(self, share: float) -> bool:
        self._owed += share
        if self._owed < 1.0:
            return False
        self._owed -= 1.0
        return True
