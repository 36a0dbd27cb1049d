"""A plan's arrays as tensors on the device: one copy on the host, and one transfer where the device is another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from schedcore._core import BatchPlan
from worker.unit_pool import StepBatch, UnitPool


class StepInputs:
    """Owns the host buffer. The tensors of a batch are views into it (or its device copy), valid until the next."""

    def __init__(self, max_num_seqs: int, max_num_tokens: int, device: torch.device) -> None:
        size = 4 * max_num_tokens + 3 * max_num_seqs + 1  # three arrays per token, three per sequence, the samples
        self._host = torch.empty(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._host_array = self._host.numpy()
        self._device = device

    def load(self, plan: BatchPlan, sample_tokens: npt.NDArray[np.int32]) -> StepBatch:
        """sample_tokens: ascending indices of the tokens whose logits are needed."""
        parts = (
            plan.token_ids,
            plan.positions,
            plan.token_row,
            plan.query_start,
            plan.seq_lens,
            plan.rows,
            sample_tokens,
        )
        sizes = [len(part) for part in parts]
        total = sum(sizes)
        np.concatenate(parts, out=self._host_array[:total])
        # blocking: a step without samples ends without waiting for the device, which may still read the buffer
        packed = self._host[:total].to(self._device)
        token_ids, positions, token_row, query_start, seq_lens, rows, samples = packed.split_with_sizes(sizes)
        return StepBatch(
            token_ids=token_ids,
            positions=positions,
            token_row=token_row,
            query_start=query_start,
            seq_lens=seq_lens,
            rows=rows,
            sample_tokens=samples.long(),
            max_query_len=_max_query_len(plan),
            max_seq_len=int(plan.seq_lens.max()),
        )


def sampled_tokens(plan: BatchPlan) -> npt.NDArray[np.int32]:
    """Of the batch's tokens, the last one of each sequence that samples."""
    return plan.query_start[1:][plan.sample_seqs] - 1


def apply_block_table_changes(plan: BatchPlan, pool: UnitPool) -> None:
    if len(plan.block_table_index) == 0:
        return
    flat = pool.block_table.view(-1)
    if flat.device.type == "cpu":
        flat.numpy()[plan.block_table_index] = plan.block_table_unit
    else:
        index, units = torch.tensor(plan.block_table_index), torch.tensor(plan.block_table_unit)
        flat.index_copy_(0, index.to(flat.device), units.to(flat.device))


def _max_query_len(plan: BatchPlan) -> int:
    if plan.num_tokens == plan.num_seqs:
        return 1
    return int(np.diff(plan.query_start).max())
