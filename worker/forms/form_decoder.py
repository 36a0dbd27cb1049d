"""The model over batches whose tokens are not all kept as K and V (step_forms.py)."""

from __future__ import annotations

import torch
from torch import Tensor

from worker import ops
from worker.batch.paged_pool import PagedPool, StoredTokens
from worker.forms.step_forms import FormBatch
from worker.models.decoder import DecoderModel
from worker.models.layers.attention import Attention


class FormAttention:
    """A layer's attention, with hidden states projected to K and V before it, part by part."""

    def __init__(self, plain: Attention) -> None:
        kv_size = plain.num_kv_heads * plain.head_dim
        self._plain = plain
        self._kv = plain.qkv.last_columns(2 * kv_size)
        self._kv_shape = (-1, 2 * plain.num_kv_heads, plain.head_dim)

    def mix(self, x: Tensor, step: FormBatch, pool: PagedPool) -> Tensor:
        """As Attention.mix(), in the forms that the batch says."""
        q, k, v = self._plain.split(x)
        layer = self._plain.layer
        if step.stored is not None:
            ops.hidden_write(x, step.stored, pool, layer)
        ops.wait_for_units(pool, layer // pool.layers_per_unit)  # the parts' pools are views of it
        if step.copies is not None:
            step.copies.wait(layer)
        mixed = []
        for part in step.parts:
            if part.context is not None:
                hidden = ops.hidden_gather(part.context.stored, pool, layer, x.shape[1])
                self.write_projected(hidden, part.context.projected, part.pool)
            own = part.tokens
            mixed.append(self._plain.attend(q[own], k[own], v[own], part.batch, part.pool))
        if step.copies is not None:
            step.copies.release(layer)
        return torch.cat(mixed)

    def write_projected(self, hidden: Tensor, tokens: StoredTokens, pool: PagedPool) -> None:
        """hidden [n, hidden_size], what mix() got as x earlier: K and V of it, to where the n tokens are."""
        plain = self._plain
        k, v = self._kv(hidden).view(self._kv_shape).chunk(2, 1)
        norm, eps = (None, 0.0) if plain.norms is None else (plain.norms.k, plain.norms.eps)
        ops.project_rope_write(k, v, norm, eps, plain.cos_sin, tokens, pool, plain.layer)


class FormDecoder:
    def __init__(self, model: DecoderModel) -> None:
        self.model = model
        self.attentions = [FormAttention(layer.attention) for layer in model.layers]

    def forward(self, step: FormBatch, pool: PagedPool) -> Tensor:
        """As DecoderModel.forward(). From some layers on, fewer tokens are computed."""
        model = self.model
        x, residual = model.begin(step.batch)
        for index, attention in enumerate(self.attentions):
            if (remaining := step.remaining.get(index)) is not None:
                x, residual, step = (
                    x.index_select(0, remaining.kept),
                    residual.index_select(0, remaining.kept),
                    remaining.batch,
                )
            mixed = attention.mix(x, step, pool)
            if index == len(self.attentions) - 1:
                samples = step.batch.sample_tokens
                mixed, residual = mixed.index_select(0, samples), residual.index_select(0, samples)
            x, residual = model.finish(index, mixed, residual)
        return model.end(x)
