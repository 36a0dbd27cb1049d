"""The device pool and its block tables, as kernels see them (see cpp/core/batch_plan.h and docs/caching.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from worker.layer_copies import CopyEngine
    from worker.step_forms import StepForms

NUM_VECTOR_KINDS = 2  # K, V
ALL_LANDED = 2**31 - 1  # kernels/include/landing.h
NUM_LANES = 3  # layers of uncached tokens that are loaded or in use at a time: kMaxLayersInFlight of the core's planner


class Arrivals:
    """Units that come from the host while the step that reads them runs, layer group by layer group.

    Group g may be read once num_landed > g; ops.py waits and lands. On CUDA that says that the copies are queued, and
    events[g] that they are done. One step's units are under way at a time.
    """

    def __init__(self) -> None:
        self.num_landed = np.full(1, ALL_LANDED, np.int32)
        self.events: list[torch.cuda.Event] = []
        self.copy_engine: CopyEngine | None = None  # where lanes are filled from


@dataclass(frozen=True, slots=True, weakref_slot=True)
class UnitPool:
    """All cache memory of one device.

    A unit holds block_size consecutive tokens x F consecutive layers x one vector kind. The vector of token p of a
    request in `row`, layer l, kind k lies at
        data[block_table[row, l // F, k, p // block_size], l % F, p % block_size]
    and where its block is one of hidden states, X at
        data[block_table.flatten(1, 2)[row, l // F, p // block_size], l % F, p % block_size, :hidden_size]
    """

    data: torch.Tensor  # [num_units, F, block_size, d_kv], d_kv = num_kv_heads * head_dim
    block_table: torch.Tensor  # int32 [max_num_seqs, num_groups, NUM_VECTOR_KINDS, max_blocks_per_seq]
    num_kv_heads: int
    head_dim: int
    num_workspace_units: int = 0  # the last of data but lanes, unknown to the scheduler: see step_forms.py
    num_lane_units: int = 0  # the last of data: for copies of uncached tokens, see layer_copies.py
    has_padding_row: bool = False  # the table's last, which leads to a unit that the scheduler does not know either
    arrivals: Arrivals = field(default_factory=Arrivals)

    @property
    def num_groups(self) -> int:
        return self.block_table.shape[1]

    @property
    def layers_per_unit(self) -> int:
        return self.data.shape[1]

    @property
    def num_lane_blocks(self) -> int:
        """Of one layer's K and V, in each lane."""
        return self.num_lane_units * self.layers_per_unit // (NUM_LANES * NUM_VECTOR_KINDS)

    @property
    def block_size(self) -> int:
        return self.data.shape[2]


@dataclass(frozen=True, slots=True)
class StoredTokens:
    """n tokens by where their vectors are stored. int32, contiguous, on the device of the pool."""

    token_row: torch.Tensor  # [n] row in UnitPool.block_table
    positions: torch.Tensor  # [n]
    source: torch.Tensor | None = None  # [n] their rows in what is stored; None: row i


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StepBatch:
    """One flattened batch on the device: T tokens of S sequences. Integer tensors are int32 and contiguous."""

    token_ids: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    token_row: torch.Tensor  # [T] row in UnitPool.block_table
    query_start: torch.Tensor  # [S + 1]
    seq_lens: torch.Tensor  # [S] tokens with cache, this step's included
    rows: torch.Tensor  # [S]
    sample_tokens: (
        torch.Tensor
    )  # int64 [num_samples], indices into the T tokens whose logits are needed; ascending, but
    # with forms
    max_query_len: int
    max_seq_len: int
    forms: StepForms | None = None  # None: all cache is K and V, and where the pool's tables say
