"""How the cost of some work grows with its input: in CPU time of this thread, whatever else the machine does."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MAX_RATIO = 6.0  # for an input four times as long: 4 is linear, 16 quadratic
_LEAST_SECONDS = 5e-4  # shorter than that, the clock and the caches decide
_ATTEMPTS = 5


def growth(work: Callable[[T], object], make: Callable[[int], T], size: int) -> float:
    """Cost of `work(make(4 * size))` over that of `work(make(size))`, each the best of several.

    Where the larger input leaves a cache or the allocator's pools, one such step costs more than four times the one
    before although the work is linear: so what looks too steep is looked at over two steps, and their mean counts, or
    the second step, if that is less: what grows faster than linear grows fastest there.
    """
    ratio = _ratio(work, make(size), make(4 * size))
    if ratio < MAX_RATIO:
        return ratio
    largest = make(16 * size)
    ratio = min(ratio, _ratio(work, make(size), largest, MAX_RATIO**2) ** 0.5)
    return ratio if ratio < MAX_RATIO else min(ratio, _ratio(work, make(4 * size), largest))


def _ratio(work: Callable[[T], object], small: T, large: T, enough: float = MAX_RATIO) -> float:
    best_small = best_large = ratio = float("inf")
    for _ in range(_ATTEMPTS):
        best_large = min(best_large, _seconds(work, large))
        best_small = min(best_small, _seconds(work, small))
        ratio = min(ratio, best_large / max(best_small, _LEAST_SECONDS))
        if ratio < enough:
            break
    return ratio


def _seconds(work: Callable[[T], object], argument: T) -> float:
    gc.disable()
    try:
        start = time.thread_time()
        work(argument)
        return time.thread_time() - start
    finally:
        gc.enable()
