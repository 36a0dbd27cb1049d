"""A log that those who misbehave cannot fill."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

_SECONDS = 10.0  # between two lines of a kind


class LimitedLog:
    """One line per kind and interval; the next says how many were left out."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._next: dict[str, float] = {}
        self._num_left_out: Counter[str] = Counter()

    def warning(self, kind: str, message: str, *args: object) -> None:
        """`kind` is one of few: it is remembered."""
        now = self._clock()
        if now < self._next.get(kind, now):
            self._num_left_out[kind] += 1
            return
        self._next[kind] = now + _SECONDS
        more = self._num_left_out.pop(kind, 0)
        self._log.warning(message + (f" ({more} more like this)" if more else ""), *args)
