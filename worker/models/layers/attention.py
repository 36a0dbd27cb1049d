"""Self-attention over the unit pool, projections included."""

from __future__ import annotations

from torch import Tensor

from worker import ops
from worker.batch.paged_pool import PagedPool, StepBatch
from worker.models.layers.linear import Linear
from worker.models.layers.norm import RMSNorm


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
        self.layer, self.qkv, self.output = layer, qkv, output
        self._heads = [num_heads, num_kv_heads, num_kv_heads]
        self.num_kv_heads, self.head_dim = num_kv_heads, head_dim
        self._shape = (-1, num_heads + 2 * num_kv_heads, head_dim)
        self._query_size = num_heads * head_dim
        self.cos_sin, self.sliding_window = cos_sin, sliding_window
        self.norms = (
            None if qk_norms is None else ops.HeadNorms(qk_norms[0].weight, qk_norms[1].weight, qk_norms[0].eps)
        )
        self._scale = head_dim**-0.5

    def mix(self, x: Tensor, batch: StepBatch, pool: PagedPool) -> Tensor:
        """Writes K and V of x [T, hidden_size] to the pool, attends -> [T, num_heads * head_dim], not yet projected."""
        return self.attend(*self.split(x), batch, pool)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of x, [T, heads, head_dim] each; neither normed nor rotated."""
        q, k, v = self.qkv(x).view(self._shape).split_with_sizes(self._heads, 1)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, batch: StepBatch, pool: PagedPool) -> Tensor:
        """What split() gave: k and v to the pool, q to all that its sequence has there."""
        ops.rope_kv_write(q, k, v, self.cos_sin, batch, pool, self.layer, self.norms)
        ops.wait_for_units(pool, self.layer // pool.layers_per_unit)
        mixed = ops.paged_attention(q, batch, pool, self.layer, self._scale, self.sliding_window)
        return mixed.view(-1, self._query_size)

    def project(self, mixed: Tensor) -> Tensor:
        """[n, num_heads * head_dim] -> [n, hidden_size]."""
        return self.output(mixed)
