"""Samples behind tokens that are only guessed (cpp/core/speculation/speculation.h): what they depend on, which count.

In a plan a guessed token is a sequence of its own, behind the one whose sample it guesses.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from schedcore._core import BatchPlan

Int32Array = npt.NDArray[np.int32]


class GuessedRows:
    """Of one plan; a row is an entry of plan.sample_seqs."""

    def __init__(self, plan: BatchPlan) -> None:
        ids = plan.request_ids[plan.sample_seqs]
        self._is_behind = np.zeros(len(ids), np.bool_)  # a guess of the row before it
        np.equal(ids[1:], ids[:-1], out=self._is_behind[1:])
        self._tokens: Int32Array | None = None  # that are guessed, by row, where there are any
        if self._is_behind.any():
            self._tokens = plan.token_ids[plan.query_start[plan.sample_seqs]]

    def before(self, row: int) -> list[int]:
        """The guesses that this row is sampled behind, the first one first."""
        if self._tokens is None:
            return []
        first = row
        while self._is_behind[first]:
            first -= 1
        tokens: list[int] = self._tokens[first + 1 : row + 1].tolist()
        return tokens

    def mask_real(self, sampled: Int32Array) -> npt.NDArray[np.uint8]:
        """All ones for rows before which all guesses were right, by what was sampled; 0 for others."""
        real = np.full(len(self._is_behind), 0xFF, np.uint8)
        if self._tokens is not None:
            for row in np.flatnonzero(self._is_behind).tolist():
                if not real[row - 1] or sampled[row - 1] != self._tokens[row]:
                    real[row] = 0
        return real
