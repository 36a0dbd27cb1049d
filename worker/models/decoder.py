"""The one model: a causal decoder whose parts are chosen by the checkpoint's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from worker.layers.attention import Attention
from worker.layers.embedding import Embedding
from worker.layers.linear import Linear
from worker.layers.mlp import MLP
from worker.layers.norm import Norm
from worker.models.model_config import ModelConfig
from worker.unit_pool import StepBatch, UnitPool


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
        next_norms = [*(layer.attention_norm for layer in layers[1:]), final_norm]
        self._layers_and_next_norms = list(zip(layers, next_norms, strict=True))
        self._run_layers = self._run_norm_first if config.is_norm_first else self._run_norm_last

    def forward(self, batch: StepBatch, pool: UnitPool) -> Tensor:
        """Runs the batch; K and V go to the pool. Final hidden states of batch.sample_tokens, [n, hidden_size].

        The last layer's projection and MLP run for those tokens only: nothing else is read from the others.
        """
        return self._run_layers(self.embedding(batch), batch, pool)

    def compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """hidden [n, hidden_size] -> float32 [n, vocab_size]. out: where to; None: a tensor of its own."""
        if self.head.project is not None:
            hidden = self.head.project(hidden)
        logits = self.head.vocabulary(hidden)
        return logits.float() if out is None else out.copy_(logits)

    def _run_norm_first(self, residual: Tensor, batch: StepBatch, pool: UnitPool) -> Tensor:
        x = self.layers[0].attention_norm(residual)
        for index, (layer, next_norm) in enumerate(self._layers_and_next_norms):
            x, residual, batch = _still_computed(index, x, residual, batch)
            mixed = layer.attention.mix(x, batch, pool)
            if layer is self.layers[-1]:
                mixed, residual = _sampled(mixed, residual, batch)
            x = layer.mlp_norm.add(layer.attention.project(mixed), residual)
            x = next_norm.add(layer.mlp(x), residual)
        return x

    def _run_norm_last(self, x: Tensor, batch: StepBatch, pool: UnitPool) -> Tensor:
        for index, layer in enumerate(self.layers):
            x, _, batch = _still_computed(index, x, x, batch)
            mixed = layer.attention.mix(x, batch, pool)
            if layer is self.layers[-1]:
                mixed, x = _sampled(mixed, x, batch)
            x = layer.attention_norm.add(layer.attention.project(mixed), x)
            x = layer.mlp_norm.add(layer.mlp(x), x)
        return self.final_norm(x)


def _still_computed(index: int, x: Tensor, residual: Tensor, batch: StepBatch) -> tuple[Tensor, Tensor, StepBatch]:
    """What layer `index` computes of what the layers before it did."""
    fewer = None if batch.forms is None else batch.forms.fewer.get(index)
    if fewer is None:
        return x, residual, batch
    return x.index_select(0, fewer.kept), residual.index_select(0, fewer.kept), fewer.batch


def _sampled(mixed: Tensor, residual: Tensor, batch: StepBatch) -> tuple[Tensor, Tensor]:
    """The rows of batch.sample_tokens. These ascend, so as many of them as there are tokens are all of them."""
    if len(batch.sample_tokens) == len(residual) and batch.forms is None:
        return mixed, residual
    return mixed.index_select(0, batch.sample_tokens), residual.index_select(0, batch.sample_tokens)
