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
    """Cost of `work(make(4 * size))` over that of `work(make(size))`, each the best of several."""
    small, large = make(size), make(4 * size)
    ratio = float("inf")
    for _ in range(_ATTEMPTS):
        ratio = min(ratio, _seconds(work, large) / max(_seconds(work, small), _LEAST_SECONDS))
        if ratio < MAX_RATIO:
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
