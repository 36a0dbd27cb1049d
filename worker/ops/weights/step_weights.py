"""The weights of a whole decoder, as a DecoderStep takes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.batch.paged_pool import PagedPool
from worker.ops.tensor_spec import match
from worker.ops.weights.packed_linear import PackedLinear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Of one layer of a DecoderStep; H hidden_size, hd head_dim, I intermediate_size. Norms are float32."""

    attention_norm: Tensor  # [H]
    qkv: PackedLinear  # H -> all heads of q, then of k, then of v
    q_norm: Tensor | None  # [hd], on each head before rotation
    k_norm: Tensor | None
    output: PackedLinear  # all heads -> H
    sliding_window: int  # 0: none
    mlp_norm: Tensor  # [H]
    gate_up: PackedLinear  # gated, H -> I
    down: PackedLinear  # I -> H


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Tensor  # [V, H], in any of the dtypes
    cos_sin: Tensor  # float32 [max_position, hd]
    layers: list[LayerWeights]
    final_norm: Tensor  # [H]
    head: PackedLinear  # H -> V
    num_heads: int
    norm_eps: float


def check_decoder_weights(weights: DecoderWeights, pool: PagedPool) -> None:
    """Raises ValueError for weights that do not fit each other or the pool."""
    heads, kv_heads, head_dim = weights.num_heads, pool.num_kv_heads, pool.head_dim
    (_, hidden), (_, rotary_dim) = weights.embedding.shape, weights.cos_sin.shape
    linears = [(weights.head, hidden, weights.embedding.shape[0])]
    vectors = [(weights.final_norm, hidden)]
    for layer in weights.layers:
        inner = layer.down.in_features
        linears += [
            (layer.qkv, hidden, (heads + 2 * kv_heads) * head_dim),
            (layer.output, heads * head_dim, hidden),
            (layer.gate_up, hidden, inner),
            (layer.down, weights.layers[0].down.in_features, hidden),
        ]
        vectors += [(layer.attention_norm, hidden), (layer.mlp_norm, hidden)]
        vectors += [(norm, head_dim) for norm in (layer.q_norm, layer.k_norm) if norm is not None]
        if (layer.q_norm is None) is not (layer.k_norm is None):
            raise ValueError("norms of q and k come together")
        if not layer.gate_up.is_gated:
            raise ValueError("gate_up must be packed as a gated weight")
    for linear, in_features, out_features in linears:
        if linear.panel_width != weights.head.panel_width:
            raise ValueError("the weights must be packed for one instruction set")
        if (linear.in_features, linear.out_features) != (in_features, out_features):
            raise ValueError(
                f"{linear.in_features} -> {linear.out_features} in place of {in_features} -> {out_features}"
            )
    for vector, size in vectors:
        match(f"norm[{size}|1]", vector)
        if vector.dtype is not torch.float32 or not vector.is_cpu:
            raise ValueError(f"norms are float32 on the CPU, not {vector.dtype} on {vector.device}")
    if not (weights.embedding.is_contiguous() and weights.cos_sin.is_contiguous() and weights.embedding.is_cpu):
        raise ValueError("the embedding and the table of rotations must be contiguous and on the CPU")
    if heads % kv_heads or rotary_dim % 2 or rotary_dim > head_dim:
        raise ValueError(f"{heads} heads over {kv_heads} KV heads, {rotary_dim} of {head_dim} rotated")
