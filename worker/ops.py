"""Every operation with a kernel of ours. The only file that names one.

T tokens in the flattened batch. On CPU activations are float32 and the pool is float32, bfloat16 or float16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from worker import ops_reference
from worker.unit_pool import StepBatch, UnitPool


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight in the layout that linear() reads fastest. Made by pack_linear()."""

    weight: Tensor
    bias: Tensor | None
    in_features: int
    out_features: int


def set_num_threads(n: int) -> None:
    """CPU threads that a kernel may use, the caller's included."""
    torch.set_num_threads(n)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H] (rows may be strided), weight [H] -> contiguous [..., H]."""
    return ops_reference.rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x in place, then rms_norm(residual). x, residual [T, H]."""
    return ops_reference.add_rms_norm(x, residual, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up. gate_up [T, 2 I], gate first -> [T, I]."""
    return ops_reference.silu_mul(gate_up)


def rope_kv_write(
    q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor | None, batch: StepBatch, pool: UnitPool, layer: int
) -> None:
    """Rotates q in place; writes the rotated k, and v, to the pool. k and v stay as they are.

    q [T, n_heads, hd], k and v [T, n_kv, hd]: may be views into one fused projection, rows strided, heads dense.
    cos_sin float32 [max_position, rot]: rot / 2 cosines, then rot / 2 sines; rot <= hd, even. Dimension i pairs with
    i + rot / 2 (half-split). None: no rotation.
    """
    ops_reference.rope_kv_write(q, k, v, cos_sin, batch, pool, layer)


def paged_attention(
    q: Tensor, batch: StepBatch, pool: UnitPool, layer: int, scale: float, sliding_window: int = 0
) -> Tensor:
    """Causal attention of every query token over its sequence's cache. q [T, n_heads, hd] -> contiguous, same shape.

    A query at position p sees keys (p - sliding_window, p], or [0, p] where sliding_window is 0. Its own key and
    value must be in the pool already.
    """
    return ops_reference.paged_attention(q, batch, pool, layer, scale, sliding_window)


def pack_linear(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """weight [N, K], bias [N] or None. Copies: the arguments may be freed."""
    n, k = weight.shape
    return PackedLinear(weight.clone(), None if bias is None else bias.clone(), k, n)


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    """x [T, K] -> x @ weight.T + bias, [T, N]."""
    return ops_reference.linear(x, packed.weight, packed.bias)
