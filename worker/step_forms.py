"""What the layers need to know of a step with other cache forms than K and V (cpp/core/cache_form.h).

Hidden states: of a token only X is stored, the input of the attention projections. In every layer the step gathers X of
all such earlier tokens, projects it to K and V, and writes these to a workspace, where attention finds them.
Uncached tokens: nothing is stored of them. They are computed again beside the step's tokens, through all layers, and
their K and V go to the workspace, too.

The workspace is some units at the end of the pool. It is one layer deep: every layer writes it anew. Attention reads it
through tables of the step's own, on the pool seen as units of one layer; where a block is stored as K and V they lead
to the pool. Sequences whose workspace does not fit at once attend in parts, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.unit_pool import StepBatch, UnitPool


@dataclass(frozen=True, slots=True)
class HiddenPlaces:
    """Where X of n tokens lies: int64 [num_groups, n], the vector of the group's first layer.

    Vectors are counted through the pool as [num_units * F * block_size, d_kv].
    """

    first: Tensor

    def in_layer(self, layer: int, pool: UnitPool) -> Tensor:
        """[n]."""
        return self.first[layer // pool.layers_per_unit] + layer % pool.layers_per_unit * pool.block_size


@dataclass(frozen=True, slots=True)
class HiddenContext:
    """Earlier tokens, stored as X, whose K and V a part needs."""

    places: HiddenPlaces
    batch: StepBatch  # where K and V go: positions, and rows of the part's tables


@dataclass(frozen=True, slots=True)
class AttentionPart:
    """Sequences that attend together. The recomputed tokens of a request are a sequence beside that of its others."""

    tokens: slice  # of the step's
    batch: StepBatch
    pool: UnitPool  # with the tables that hold for the part
    context: HiddenContext | None


@dataclass(frozen=True, slots=True)
class StepForms:
    parts: list[AttentionPart]  # their tokens are all of the step's, in order
    stored_tokens: Tensor  # int64 [n], indices of the tokens whose X is stored
    stored_places: HiddenPlaces


def tokens_at(positions: Tensor, rows: Tensor) -> StepBatch:
    """Places only, for writing: no sequences. int32 [n] both."""
    empty = positions[:0]
    return StepBatch(
        token_ids=empty,
        positions=positions,
        token_row=rows,
        query_start=positions.new_zeros(1),
        seq_lens=empty,
        rows=empty,
        sample_tokens=empty,
        max_query_len=0,
        max_seq_len=0,
    )


def hidden_places(pool: UnitPool, rows: Tensor, positions: Tensor) -> HiddenPlaces:
    """rows of the pool's block table and positions: integers [n]."""
    groups = torch.arange(pool.block_table.shape[1], device=rows.device)[:, None]
    blocks = (positions // pool.block_size).long()
    units = pool.block_table.flatten(1, 2)[rows.long(), groups, blocks]  # [num_groups, n]
    return HiddenPlaces(units.long() * (pool.layers_per_unit * pool.block_size) + positions % pool.block_size)


def write_hidden(x: Tensor, forms: StepForms, pool: UnitPool, layer: int) -> None:
    """x [T, hidden_size], of all of the step's tokens."""
    if len(forms.stored_tokens) == 0:
        return
    vectors = _vectors(pool)[:, : x.shape[1]]
    vectors.index_copy_(0, forms.stored_places.in_layer(layer, pool), x[forms.stored_tokens].to(vectors.dtype))


def read_hidden(places: HiddenPlaces, pool: UnitPool, layer: int, hidden_size: int) -> Tensor:
    """[n, hidden_size], in the dtype of activations."""
    return activations(_vectors(pool).index_select(0, places.in_layer(layer, pool))[:, :hidden_size])


def activations(cached: Tensor) -> Tensor:
    """What was read from a pool, in the dtype of activations: float32 on CPU, the pool's elsewhere."""
    return cached.float() if cached.is_cpu else cached


def _vectors(pool: UnitPool) -> Tensor:
    return pool.data.view(-1, pool.data.shape[3])
