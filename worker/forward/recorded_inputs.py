"""Steps as batches of a few sizes whose tensors never move.

A batch is the step's, and then padding: sequences without tokens, and tokens of no sequence, whose K and V go to the
block table's last row, which leads to a unit that nobody else has. What they compute is not read.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from schedcore._core import BatchPlan
from worker.batch.paged_pool import ALL_LANDED, PagedPool, StepBatch
from worker.batch.staging import Parcel, Staging
from worker.forward.step_inputs import changes_parcel, send_with_changes
from worker.forward.step_size import StepSize, smallest

Int32Array = npt.NDArray[np.int32]

_CHANGED_BLOCKS = 4  # of a token, for which there is room: a decode fills one block at a time
_BYTES_OF_OTHERS = 64  # of a sequence: its sampling parameters


class RecordedInputs:
    """REQUIRES: pool.has_padding_row."""

    def __init__(self, pool: PagedPool, sizes: list[StepSize]) -> None:
        """sizes: ascending."""
        num_tokens = max(size.num_tokens for size in sizes)
        num_seqs = max(size.num_seqs for size in sizes)
        self._pool, self._sizes = pool, sizes
        self._tokens = np.zeros((3, num_tokens), np.int32)  # token_ids, positions, token_row
        self._seqs = np.zeros((2, num_seqs), np.int32)  # seq_lens, rows
        self._query_start = np.zeros(num_seqs + 1, np.int32)
        self._samples = np.zeros(num_seqs, np.int64)
        self._num_used = num_tokens, num_seqs
        self._parcel = Parcel(*self._tokens, *self._seqs, self._query_start, self._samples)
        entries = pool.block_table[0, ..., 0].numel() * _CHANGED_BLOCKS
        num_bytes = sum(array.nbytes for array in self._parcel.arrays) + num_seqs * _BYTES_OF_OTHERS
        self._staging = Staging(pool.data.device, num_bytes + num_tokens * entries * 12 + (1 << 10), can_grow=False)
        self._pad(0, 0)
        self._staging.send(self._parcel)
        self.batches = {size: self._batch(size) for size in sizes}

    def size_of(self, plan: BatchPlan, sample_tokens: Int32Array, *others: Parcel) -> StepSize | None:
        """None: it is too large, something is under way to it, or much has changed in the table."""
        size = smallest(self._sizes, plan.num_tokens, plan.num_seqs)
        if size is None or len(sample_tokens) > size.num_seqs:
            return None
        is_landed = self._pool.arrivals.num_landed[0] == ALL_LANDED
        fits = self._staging.fits(self._parcel, *others, changes_parcel(plan, self._pool))
        return size if is_landed and fits else None

    def load(self, size: StepSize, plan: BatchPlan, sample_tokens: Int32Array, *others: Parcel) -> None:
        """Fills the batch of that size. others: go along. REQUIRES: size == size_of() of the same."""
        num_tokens, num_seqs, num_samples = plan.num_tokens, plan.num_seqs, len(sample_tokens)
        for to, array in zip(self._tokens, (plan.token_ids, plan.positions, plan.token_row), strict=True):
            to[:num_tokens] = array
        for to, array in zip(self._seqs, (plan.seq_lens, plan.rows), strict=True):
            to[:num_seqs] = array
        self._query_start[: num_seqs + 1] = plan.query_start
        self._query_start[num_seqs + 1 : size.num_seqs + 1] = num_tokens
        self._samples[:num_samples] = sample_tokens
        self._samples[num_samples : size.num_seqs] = 0
        self._pad(num_tokens, num_seqs)
        send_with_changes(self._staging, plan, self._pool, self._parcel, *others)

    def _pad(self, num_tokens: int, num_seqs: int) -> None:
        """From there on to where the last step ended."""
        padding_row = self._pool.block_table.shape[0] - 1
        self._tokens[:, num_tokens : self._num_used[0]] = [[0], [0], [padding_row]]
        self._seqs[:, num_seqs : self._num_used[1]] = [[1], [padding_row]]
        self._num_used = num_tokens, num_seqs

    def _batch(self, size: StepSize) -> StepBatch:
        token_ids, positions, token_row, seq_lens, rows, query_start, samples = self._parcel.tensors
        return StepBatch(
            token_ids=token_ids[: size.num_tokens],
            positions=positions[: size.num_tokens],
            token_row=token_row[: size.num_tokens],
            query_start=query_start[: size.num_seqs + 1],
            seq_lens=seq_lens[: size.num_seqs],
            rows=rows[: size.num_seqs],
            sample_tokens=samples[: size.num_seqs],
            max_query_len=1 if size.is_of_decodes else size.num_tokens,
            max_seq_len=self._pool.block_table.shape[-1] * self._pool.block_size,  # any that may come
        )
