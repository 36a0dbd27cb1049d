"""Whether forced tokens save more time than it takes to ask for them."""

from __future__ import annotations

_MEMORY = 128  # steps in which was asked; they come in bursts, since forms do
_NUM_UNASKED = 256  # steps in a row, where it has not paid
_NUM_TRIED = 8  # after these


class ForcedWorth:
    def __init__(self) -> None:
        self._gain = 0.0  # seconds, of a step in which was asked: saved, less those of asking
        self._saved = 0.0  # seconds, since it was asked last
        self._num_asked = 0
        self._num_unasked = 0  # steps that are left

    def on_saved(self, seconds: float) -> None:
        """By forced tokens of a step. One that samples n rows, k of them forced, saves k / n of a step like itself."""
        self._saved += seconds

    def wants(self) -> bool:
        """Whether to ask behind this step; then on_asked() is to follow."""
        if self._num_unasked > 0:
            self._num_unasked -= 1
            return False
        return True

    def on_asked(self, seconds: float) -> None:
        """That it took."""
        self._gain += (self._saved - seconds - self._gain) / _MEMORY
        self._saved = 0.0
        self._num_asked += 1
        if self._gain < 0 and self._num_asked >= _MEMORY:
            self._num_unasked = _NUM_UNASKED
            self._num_asked = _MEMORY - _NUM_TRIED
