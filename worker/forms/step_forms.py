"""What the layers need to know of a step with other cache forms than K and V (cpp/core/base/cache_form.h).

Hidden states: of a token only X is stored, the input of the attention projections. In every layer the step gathers X of
all such earlier tokens, projects it to K and V, and writes these to a workspace, where attention finds them.
Uncached tokens: nothing is stored of them. They are computed again beside the step's tokens, through all layers, and
their K and V go to the workspace, too.

The workspace is some units at the end of the pool. It is one layer deep: every layer writes it anew. Attention reads it
through tables of the step's own, on the pool seen as units of one layer; where a block is stored as K and V they lead
to the pool.

Where the host has copies of uncached tokens, a step may recompute them through its first layers only. Behind these they
leave the batch, and what attention needs of them is loaded layer by layer (layer_copies.py).

Sequences whose workspace does not fit at once attend in parts, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from worker.batch.paged_pool import PagedPool, StepBatch, StoredTokens
from worker.forms.layer_copies import LayerCopies


@dataclass(frozen=True, slots=True)
class HiddenContext:
    """Earlier tokens, stored as X, whose K and V a part needs."""

    stored: StoredTokens  # X, in the pool
    projected: StoredTokens  # K and V, by the part's tables


@dataclass(frozen=True, slots=True)
class AttentionPart:
    """Sequences that attend together. The recomputed tokens of a request are a sequence beside that of its others."""

    tokens: slice  # of the step's
    batch: StepBatch
    pool: PagedPool  # with the tables that hold for the part
    context: HiddenContext | None


@dataclass(frozen=True, slots=True)
class RemainingTokens:
    """From some layer on, fewer tokens are computed."""

    kept: Tensor  # int64, of the tokens so far
    batch: FormBatch


@dataclass(frozen=True, slots=True)
class FormBatch:
    batch: StepBatch  # its sample_tokens need not ascend
    parts: list[AttentionPart]  # their tokens are all of the step's, in order
    stored: StoredTokens | None  # those of the step's tokens whose X is stored
    remaining: dict[int, RemainingTokens] = field(default_factory=dict)  # by layer
    copies: LayerCopies | None = None  # what is loaded meanwhile
