"""Token ids and positions to vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from worker.batch.paged_pool import StepBatch
from worker.models.layers.linear import Linear


class Embedding:
    """Token embedding, with what OPT adds: a projection to the hidden size and learned positions."""

    def __init__(
        self,
        tokens: Tensor,
        activation_dtype: torch.dtype,
        positions: Tensor | None = None,
        position_offset: int = 0,
        project: Linear | None = None,
    ) -> None:
        """tokens [vocab_size, embed_size]; positions [max_positions + position_offset, hidden_size]."""
        self.tokens, self._dtype = tokens, activation_dtype
        self._positions, self._position_offset = positions, position_offset
        self._project = project

    def __call__(self, batch: StepBatch) -> Tensor:
        """[T, hidden_size], a tensor of its own."""
        x = F.embedding(batch.token_ids, self.tokens).to(self._dtype)
        if self._project is not None:
            x = self._project(x)
        if self._positions is not None:
            x += F.embedding(batch.positions + self._position_offset, self._positions)
        return x
