"""Self-attention over the unit pool, projections included."""

from __future__ import annotations

import torch
from torch import Tensor

from worker import ops
from worker.layers.linear import Linear
from worker.layers.norm import RMSNorm
from worker.unit_pool import StepBatch, StoredTokens, UnitPool


class Attention:
    def __init__(
        self,
        layer: int,
        qkv: Linear,
        output: Linear,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        cos_sin: Tensor | None,
        sliding_window: int,
        qk_norms: tuple[RMSNorm, RMSNorm] | None = None,
    ) -> None:
        """qkv: hidden_size -> all heads of q, then of k, then of v. cos_sin: see layers/rope.py; None: no rotation."""
        self._layer, self.qkv, self.output = layer, qkv, output
        self._heads = [num_heads, num_kv_heads, num_kv_heads]
        self._shape = (-1, num_heads + 2 * num_kv_heads, head_dim)
        self._kv_shape = (-1, 2 * num_kv_heads, head_dim)
        self._query_size = num_heads * head_dim
        self.cos_sin, self.sliding_window, self.qk_norms = cos_sin, sliding_window, qk_norms
        self._scale = head_dim**-0.5
        self._kv = qkv.last_columns(2 * num_kv_heads * head_dim)

    def mix(self, x: Tensor, batch: StepBatch, pool: UnitPool) -> Tensor:
        """Writes K and V of x [T, hidden_size] to the pool, attends -> [T, num_heads * head_dim], not yet projected.

        With batch.forms, in the forms that these say.
        """
        q, k, v = self.qkv(x).view(self._shape).split_with_sizes(self._heads, 1)  # [T, heads, head_dim] each
        if self.qk_norms is not None:
            q, k = self.qk_norms[0](q), self.qk_norms[1](k)
        if batch.forms is None:
            return self._attend(q, k, v, batch, pool)
        if batch.forms.stored is not None:
            ops.hidden_write(x, batch.forms.stored, pool, self._layer)
        ops.wait_for_units(pool, self._layer // pool.layers_per_unit)  # the parts' pools are views of it
        copies = batch.forms.copies
        if copies is not None:
            copies.wait(self._layer)
        parts = []
        for part in batch.forms.parts:
            if part.context is not None:
                hidden = ops.hidden_gather(part.context.stored, pool, self._layer, x.shape[1])
                self.write_projected(hidden, part.context.projected, part.pool)
            own = part.tokens
            parts.append(self._attend(q[own], k[own], v[own], part.batch, part.pool))
        if copies is not None:
            copies.release(self._layer)
        return torch.cat(parts)

    def write_projected(self, hidden: Tensor, tokens: StoredTokens, pool: UnitPool) -> None:
        """hidden [n, hidden_size], what mix() got as x earlier: K and V of it, to where the n tokens are."""
        k, v = self._kv(hidden).view(self._kv_shape).split_with_sizes(self._heads[1:], 1)
        norm, eps = (None, 0.0) if self.qk_norms is None else (self.qk_norms[1].weight, self.qk_norms[1].eps)
        ops.project_rope_write(k, v, norm, eps, self.cos_sin, tokens, pool, self._layer)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, batch: StepBatch, pool: UnitPool) -> Tensor:
        ops.rope_kv_write(q, k, v, self.cos_sin, batch, pool, self._layer)
        ops.wait_for_units(pool, self._layer // pool.layers_per_unit)
        mixed = ops.paged_attention(q, batch, pool, self._layer, self._scale, self.sliding_window)
        return mixed.view(-1, self._query_size)

    def project(self, mixed: Tensor) -> Tensor:
        """[n, num_heads * head_dim] -> [n, hidden_size]."""
        return self.output(mixed)
