"""The device pool and its block tables, as kernels see them (see cpp/core/base/batch_plan.h and docs/caching.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from schedcore._core import MAX_LAYERS_IN_FLIGHT

NUM_VECTOR_KINDS = 2  # K, V
ALL_LANDED = 2**31 - 1  # groups, more than there are: kernels/include/landing.h
NUM_LANES = MAX_LAYERS_IN_FLIGHT


class CopyEngine(Protocol):
    """Copies units of one layer from the host to the lanes, in the order in which it is told to."""

    @property
    def units_per_block(self) -> int: ...

    def begin(self, to: Tensor, source: Tensor) -> Callable[[], None]:
        """After what the device was told so far. What comes back waits for the end, or lets the device wait."""

    def close(self) -> None: ...


class Arrivals:
    """Units that come from the host while the step that reads them runs, layer group by layer group.

    Group g may be read once num_landed > g; ops.py waits and lands. On CUDA that says that the copies are queued, and
    events[g] that they are done. One step's units are under way at a time.
    """

    def __init__(self) -> None:
        self.num_landed = np.full(1, ALL_LANDED, np.int32)
        self.events: list[torch.cuda.Event] = []
        self.copy_engine: CopyEngine | None = None  # where lanes are filled from


class Native:
    """What worker/ops makes of a pool, or of a batch in one, for its kernels: once, when they first need it."""

    __slots__ = ("made", "pool")

    def __init__(self) -> None:
        self.made: Any = None
        self.pool: PagedPool | None = None  # that a batch's is for


@dataclass(frozen=True, slots=True)
class PagedPool:
    """All cache memory of one device.

    A unit holds block_size consecutive tokens x F consecutive layers x one vector kind. The vector of token p of a
    request in `row`, layer l, kind k lies at
        data[block_table[row, l // F, k, p // block_size], l % F, p % block_size]
    and where its block is one of hidden states, X at
        data[block_table.flatten(1, 2)[row, l // F, p // block_size], l % F, p % block_size, :hidden_size]
    Where single rows may be in int8, vectors are longer than what lies in them: see int8_cache.py.
    """

    data: Tensor  # [num_units, F, block_size, d_kv], d_kv = num_kv_heads * head_dim; in int8: see int8_cache.py
    block_table: Tensor  # int32 [max_num_seqs, num_groups, NUM_VECTOR_KINDS, max_blocks_per_seq]
    num_kv_heads: int
    head_dim: int
    num_workspace_units: int = 0  # the last of data but lanes, unknown to the scheduler: see step_forms.py
    num_lane_units: int = 0  # the last of data: for copies of uncached tokens, see layer_copies.py
    has_padding_row: bool = False  # the table's last, which leads to a unit that the scheduler does not know either
    # uint8 [max_num_seqs] on CPU: nonzero where a row's blocks hold K and V in int8, a unit for both; None: no row can
    int8_rows: Tensor | None = None
    arrivals: Arrivals = field(default_factory=Arrivals)
    native: Native = field(default_factory=Native, init=False, repr=False, compare=False)

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

    token_row: Tensor  # [n] row in PagedPool.block_table
    positions: Tensor  # [n]
    source: Tensor | None = None  # [n] their rows in what is stored; None: row i


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One flattened batch on the device: T tokens of S sequences. Integer tensors are int32 and contiguous.

    Tokens behind query_start[-1] are padding: they attend to nothing, and what comes of them is not defined.
    """

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    token_row: Tensor  # [T] row in PagedPool.block_table
    query_start: Tensor  # [S + 1]
    seq_lens: Tensor  # [S] tokens with cache, this step's included
    rows: Tensor  # [S]
    sample_tokens: Tensor  # int64 [num_samples], indices into the T tokens whose logits are needed; ascending
    max_query_len: int
    max_seq_len: int
    native: Native = field(default_factory=Native, init=False, repr=False, compare=False)
