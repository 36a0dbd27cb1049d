"""The highest request rate at which a server attains a level, asked one measurement at a time.

So that several servers can be searched in turns: whatever else happens on the machine, it happens to all.
"""

from __future__ import annotations

import math


class RateSearch:
    """Attainment is taken to fall with the rate. Doubles or halves until two rates enclose the answer, then narrows.

    The answer is the lower end: the level was held there. 0 while no rate has held it.
    """

    def __init__(self, level: float, start: float, precision: float = 1.1, max_factor: float = 64.0) -> None:
        """Done when the two rates are a factor of `precision` apart, or `max_factor` from the start."""
        if not (0 < level <= 1 and start > 0 and precision > 1 and max_factor > 1):
            raise ValueError("level must be in (0, 1], start positive, precision and max_factor above 1")
        self._level, self._precision = level, precision
        self._least, self._most = start / max_factor, start * max_factor
        self._start = start
        self.best = 0.0
        self._worst = math.inf  # the lowest rate that did not hold the level

    @property
    def is_done(self) -> bool:
        if self.best == 0:
            return self._worst <= self._least
        return self.best >= self._most or self._worst <= self.best * self._precision

    @property
    def rate(self) -> float:
        """To measure next."""
        if self.best == 0:
            return self._start if math.isinf(self._worst) else self._worst / 2
        return self.best * 2 if math.isinf(self._worst) else math.sqrt(self.best * self._worst)

    def record(self, rate: float, attainment: float) -> None:
        if attainment >= self._level:
            self.best = max(self.best, rate)
        else:
            self._worst = min(self._worst, rate)
