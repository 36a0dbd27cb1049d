"""A plan's arrays as tensors on the device, all in one transfer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from schedcore._core import BatchPlan
from worker.batch.paged_pool import PagedPool, StepBatch
from worker.batch.staging import Parcel, Staging, to_device


class StepInputs:
    """The tensors of a batch are valid until the next."""

    def __init__(self, pool: PagedPool) -> None:
        self._pool, self._staging = pool, Staging(pool.data.device)

    def load(self, plan: BatchPlan, sample_tokens: npt.NDArray[np.int32], *others: Parcel) -> StepBatch:
        """sample_tokens: ascending indices of the tokens whose logits are needed. others: go along."""
        step = Parcel(
            plan.token_ids,
            plan.positions,
            plan.token_row,
            plan.query_start,
            plan.seq_lens,
            plan.rows,
            sample_tokens.astype(np.int64),
        )
        send_with_changes(self._staging, plan, self._pool, step, *others)
        token_ids, positions, token_row, query_start, seq_lens, rows, samples = step.tensors
        return StepBatch(
            token_ids=token_ids,
            positions=positions,
            token_row=token_row,
            query_start=query_start,
            seq_lens=seq_lens,
            rows=rows,
            sample_tokens=samples,
            max_query_len=_max_query_len(plan),
            max_seq_len=int(plan.seq_lens.max()),
        )


def sampled_tokens(plan: BatchPlan) -> npt.NDArray[np.int32]:
    """Of the batch's tokens, the last one of each sequence that samples."""
    return plan.query_start[1:][plan.sample_seqs] - 1


def begin_changes(plan: BatchPlan, pool: PagedPool) -> None:
    """What must be done of the plan's block table changes before its inputs are loaded.

    On CPU all of it. Elsewhere they are loaded with the inputs.
    """
    if pool.data.is_cpu:
        apply_block_table_changes(plan, pool)


def apply_block_table_changes(plan: BatchPlan, pool: PagedPool) -> None:
    if len(plan.block_table_index) == 0:
        return
    flat = pool.block_table.view(-1)
    if flat.device.type == "cpu":
        flat.numpy()[plan.block_table_index] = plan.block_table_unit
    else:
        index, units = to_device(plan.block_table_index, flat.device), to_device(plan.block_table_unit, flat.device)
        flat.index_copy_(0, index, units)


def changes_parcel(plan: BatchPlan, pool: PagedPool) -> Parcel:
    """The block table changes that go with a plan's inputs, as far as there are any; see begin_changes()."""
    if pool.data.is_cpu or len(plan.block_table_index) == 0:
        return Parcel()
    return Parcel(plan.block_table_index, plan.block_table_unit)


def send_with_changes(staging: Staging, plan: BatchPlan, pool: PagedPool, *parcels: Parcel) -> None:
    """The parcels go to the device, with the block table's changes, which are applied there."""
    changes = changes_parcel(plan, pool)
    staging.send(*parcels, changes)
    if changes.arrays:
        pool.block_table.view(-1).index_copy_(0, *changes.tensors)


def _max_query_len(plan: BatchPlan) -> int:
    if plan.num_tokens == plan.num_seqs:
        return 1
    return int(np.diff(plan.query_start).max())
