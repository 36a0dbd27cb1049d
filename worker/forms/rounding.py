"""Blocks of K and V that become int8 before a step runs, and who is kept so (Rounding of cpp/core/base/form_plan.h)."""

from __future__ import annotations

import numpy as np
import torch

from schedcore._core import BatchPlan, CacheKind
from worker import ops
from worker.batch.paged_pool import NUM_VECTOR_KINDS, PagedPool


def begin_kinds(plan: BatchPlan, pool: PagedPool) -> None:
    """Nothing where no row can be in int8. REQUIRES: the plan's block table changes have been applied, on CPU; nothing
    else of it has been done."""
    if pool.int8_rows is None:
        return
    kinds = plan.cache_kinds
    pool.int8_rows.numpy()[plan.rows] = kinds == CacheKind.INT8 if len(kinds) else False
    if len(plan.rounded_units) == 0:
        return
    row, block = plan.roundings.T
    places = pool.block_table.flatten(1, 2).numpy()  # [rows, places, max_blocks]
    to = np.ascontiguousarray(places[row, : pool.num_groups, block])
    sources = plan.rounded_units.reshape(-1, pool.num_groups, NUM_VECTOR_KINDS)
    ops.int8_blocks(pool, torch.from_numpy(sources.copy()), torch.from_numpy(to))
