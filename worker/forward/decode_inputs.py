"""Steps of decodes alone, as batches of a few sizes whose tensors never move.

A batch has as many decodes as the step, and then padding: sequences of one token in the block table's last row, which
leads to a unit that nobody else has. What they compute is not read.
"""

from __future__ import annotations

import numpy as np
import torch

from schedcore._core import BatchPlan
from worker.batch.paged_pool import ALL_LANDED, PagedPool, StepBatch
from worker.batch.staging import Parcel, Staging
from worker.forward.step_inputs import changes_parcel, send_with_changes

_CHANGED_BLOCKS = 4  # of a decode, for which there is room: it fills one block at a time
_BYTES_OF_OTHERS = 64  # of a sequence: its sampling parameters


def batch_sizes(largest: int) -> list[int]:
    """Ascending up to `largest`: powers of two, and from 8 on the middles between them."""
    powers = [1 << i for i in range(largest.bit_length())]
    sizes = {*powers, *(3 * power // 2 for power in powers if power >= 8), largest}
    return sorted(size for size in sizes if size <= largest)


class DecodeInputs:
    """REQUIRES: pool.has_padding_row."""

    def __init__(self, pool: PagedPool, sizes: list[int]) -> None:
        """sizes: ascending."""
        largest, device = sizes[-1], pool.data.device
        self._pool, self._sizes, self._num_used = pool, sizes, largest
        self._step = np.zeros((4, largest), np.int32)  # token_ids, positions, rows, seq_lens
        self._parcel = Parcel(*self._step)
        table_entries = pool.block_table[0, ..., 0].numel() * _CHANGED_BLOCKS
        num_bytes = largest * (self._step.shape[0] * 4 + _BYTES_OF_OTHERS + table_entries * 12) + (1 << 10)
        self._staging = Staging(device, num_bytes, can_grow=False)
        self._pad(0)
        self._staging.send(self._parcel)
        self._token_starts = torch.arange(largest + 1, dtype=torch.int32, device=device)
        self._places = torch.arange(largest, device=device)
        self.batches = {size: self._batch(size) for size in sizes}

    def can_take(self, plan: BatchPlan, *others: Parcel) -> bool:
        """Whether it has single tokens only, not too many, nothing under way to them, little changed in the table."""
        num = plan.num_seqs
        if not plan.num_tokens == num <= self._sizes[-1]:
            return False
        is_landed = self._pool.arrivals.num_landed[0] == ALL_LANDED
        return bool(is_landed) and self._staging.fits(self._parcel, *others, changes_parcel(plan, self._pool))

    def load(self, plan: BatchPlan, *others: Parcel) -> int:
        """Fills the batch of the size that it returns. others: go along. REQUIRES: can_take()."""
        num = plan.num_seqs
        for to, array in zip(self._step, (plan.token_ids, plan.positions, plan.rows, plan.seq_lens), strict=True):
            to[:num] = array
        self._pad(num)
        send_with_changes(self._staging, plan, self._pool, self._parcel, *others)
        return next(size for size in self._sizes if size >= num)

    def _pad(self, num: int) -> None:
        """From there on to where the last step ended."""
        padding_row = self._pool.block_table.shape[0] - 1
        self._step[:, num : self._num_used] = [[0], [0], [padding_row], [1]]
        self._num_used = num

    def _batch(self, size: int) -> StepBatch:
        token_ids, positions, rows, seq_lens = (tensor[:size] for tensor in self._parcel.tensors)
        return StepBatch(
            token_ids=token_ids,
            positions=positions,
            token_row=rows,
            query_start=self._token_starts[: size + 1],
            seq_lens=seq_lens,
            rows=rows,
            sample_tokens=self._places[:size],
            max_query_len=1,
            max_seq_len=self._pool.block_table.shape[-1] * self._pool.block_size,  # any that may come
        )
