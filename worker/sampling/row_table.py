"""Sampling parameters by row, so that a step gathers them with array indexing instead of asking each request."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from worker.sampling.request_state import Needs, RequestState

UInt64Array = npt.NDArray[np.uint64]
Int32Array = npt.NDArray[np.int32]


class RowTable:
    """Each array is [max_num_seqs]. A row is filled when it is first seen with a request; a request may move rows."""

    def __init__(self, max_num_seqs: int) -> None:
        self.needs = np.zeros(max_num_seqs, dtype=np.uint8)
        self.num_prompt_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self.seed = np.zeros(max_num_seqs, dtype=np.uint64)
        self.temperature = np.zeros(max_num_seqs, dtype=np.float32)  # 0: greedy
        self.top_p = np.ones(max_num_seqs, dtype=np.float32)
        self.top_k = np.zeros(max_num_seqs, dtype=np.int64)
        self.min_p = np.zeros(max_num_seqs, dtype=np.float32)
        self._request_ids = np.zeros(max_num_seqs, dtype=np.uint64)
        self._is_filled = np.zeros(max_num_seqs, dtype=np.bool_)

    def sync(self, request_ids: UInt64Array, rows: Int32Array, states: Mapping[int, RequestState]) -> None:
        """Makes the rows speak of these requests. One that is not in `states` is plainly greedy."""
        stale = (self._request_ids[rows] != request_ids) | ~self._is_filled[rows]
        if np.count_nonzero(stale):
            for row, request_id in zip(rows[stale].tolist(), request_ids[stale].tolist(), strict=True):
                self._fill(row, request_id, states.get(request_id))

    def forget(self, request_id: int) -> None:
        """A later request may bear the same id."""
        self._is_filled[self._request_ids == request_id] = False

    def _fill(self, row: int, request_id: int, state: RequestState | None) -> None:
        self._request_ids[row], self._is_filled[row] = request_id, True
        self.needs[row] = 0 if state is None else state.needs
        self.temperature[row] = 0.0
        if state is not None:
            params = state.params
            self.num_prompt_tokens[row] = state.num_prompt_tokens
            self.seed[row] = state.seed
            self.temperature[row] = params.temperature if state.needs & Needs.RANDOM else 0.0
            self.top_p[row] = params.top_p
            self.top_k[row] = params.top_k
            self.min_p[row] = params.min_p
