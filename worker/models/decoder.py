"""The one model: a causal decoder whose parts are chosen by the checkpoint's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from worker.batch.paged_pool import PagedPool, StepBatch
from worker.models.layers.attention import Attention
from worker.models.layers.embedding import Embedding
from worker.models.layers.linear import Linear
from worker.models.layers.mlp import MLP
from worker.models.layers.norm import Norm
from worker.models.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    attention_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: MLP


@dataclass(frozen=True, slots=True)
class OutputHead:
    project: Linear | None  # hidden_size -> embed_size (OPT), before the vocabulary
    vocabulary: Linear


class DecoderModel:
    """Stateless between steps: what a request leaves behind is in the pool."""

    def __init__(
        self, config: ModelConfig, embedding: Embedding, layers: list[DecoderLayer], final_norm: Norm, head: OutputHead
    ) -> None:
        self.config = config
        self.embedding, self.layers, self.final_norm, self.head = embedding, layers, final_norm, head
        self._next_norms = [*(layer.attention_norm for layer in layers[1:]), final_norm]
        self.finish = self._finish_norm_first if config.is_norm_first else self._finish_norm_last

    def forward(self, batch: StepBatch, pool: PagedPool) -> Tensor:
        """Runs the batch; K and V go to the pool. Final hidden states of batch.sample_tokens, [n, hidden_size].

        The last layer's projection and MLP run for those tokens only: nothing else is read from the others.
        """
        x, residual = self.begin(batch)
        for index, layer in enumerate(self.layers):
            mixed = layer.attention.mix(x, batch, pool)
            if layer is self.layers[-1]:
                mixed, residual = _sampled(mixed, residual, batch)
            x, residual = self.finish(index, mixed, residual)
        return self.end(x)

    def begin(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """What the first layer's attention reads, and the residual, [T, hidden_size] each."""
        residual = self.embedding(batch)
        return (self.layers[0].attention_norm(residual) if self.config.is_norm_first else residual), residual

    def end(self, x: Tensor) -> Tensor:
        """x: as the last layer's finish() gave it."""
        return x if self.config.is_norm_first else self.final_norm(x)

    def compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """hidden [n, hidden_size] -> float32 [n, vocab_size]. out: where to; None: a tensor of its own."""
        logits = self.head.vocabulary(self.project(hidden))
        return logits.float() if out is None else out.copy_(logits)

    def project(self, hidden: Tensor) -> Tensor:
        """What the vocabulary is compared with, [n, embed_size]."""
        return hidden if self.head.project is None else self.head.project(hidden)

    def _finish_norm_first(self, index: int, mixed: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """What follows attention in layer `index`: what the next layer's attention reads, and the residual."""
        layer = self.layers[index]
        x = layer.mlp_norm.add(layer.attention.project(mixed), residual)
        return self._next_norms[index].add(layer.mlp(x), residual), residual

    def _finish_norm_last(self, index: int, mixed: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        layer = self.layers[index]
        x = layer.attention_norm.add(layer.attention.project(mixed), residual)
        x = layer.mlp_norm.add(layer.mlp(x), x)
        return x, x


def _sampled(mixed: Tensor, residual: Tensor, batch: StepBatch) -> tuple[Tensor, Tensor]:
    """The rows of batch.sample_tokens. These ascend, so as many of them as there are tokens are all of them."""
    if len(batch.sample_tokens) == len(residual):
        return mixed, residual
    return mixed.index_select(0, batch.sample_tokens), residual.index_select(0, batch.sample_tokens)
