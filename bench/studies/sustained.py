"""The request rate up to which a system holds a level of attainment."""

from __future__ import annotations

from collections.abc import Callable

MAX_GROWTH = 8  # times the start rate; beyond it a run of 1,000 requests measures a burst, not a rate


def sustained_rate(attainment: Callable[[float], float], level: float, start: float, num_halvings: int) -> float:
    """Requests per second; attainment is taken to fall with the rate.

    Doubles or halves `start` until the level lies between two rates, then narrows that bracket, geometrically.
    The answer is the lower end: the level was held there. MAX_GROWTH * start if even that rate holds it, 0 if no rate
    down to start / 64 does.
    """
    low, high = bracket(attainment, level, start)
    if low in (0.0, high):
        return low
    for _ in range(num_halvings):
        middle = (low * high) ** 0.5
        if attainment(middle) >= level:
            low = middle
        else:
            high = middle
    return low


def bracket(attainment: Callable[[float], float], level: float, start: float) -> tuple[float, float]:
    """(a rate that holds the level, twice that rate, which does not); equal, or the lower one 0, at the ends."""
    rate = start
    if attainment(rate) >= level:
        while rate < MAX_GROWTH * start:
            if attainment(2 * rate) < level:
                return rate, 2 * rate
            rate *= 2
        return rate, rate
    while rate > start / 64:
        rate /= 2
        if attainment(rate) >= level:
            return rate, 2 * rate
    return 0.0, rate
