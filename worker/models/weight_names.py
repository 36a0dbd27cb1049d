"""What checkpoints call their tensors, and which shapes a configuration makes us expect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from worker.models.model_config import ModelConfig

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Module names, without `.weight` and `.bias`. Names of a layer are relative to `layer`."""

    embed: str
    final_norm: str
    layer: str
    attention_norm: str
    output: str
    mlp_norm: str
    up: tuple[str, ...]  # gate before up where the activation is gated
    down: str
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    lm_head: str = "lm_head"
    positions: str = ""
    project_in: str = ""
    project_out: str = ""


LLAMA_NAMES = WeightNames(
    embed="model.embed_tokens",
    final_norm="model.norm",
    layer="model.layers.{}.",
    attention_norm="input_layernorm",
    output="self_attn.o_proj",
    mlp_norm="post_attention_layernorm",
    up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
)

OPT_NAMES = WeightNames(
    embed="model.decoder.embed_tokens",
    final_norm="model.decoder.final_layer_norm",
    layer="model.decoder.layers.{}.",
    attention_norm="self_attn_layer_norm",
    output="self_attn.out_proj",
    mlp_norm="final_layer_norm",
    up=("fc1",),
    down="fc2",
    positions="model.decoder.embed_positions",
    project_in="model.decoder.project_in",
    project_out="model.decoder.project_out",
)

LEARNED_POSITION_OFFSET = 2  # OPT's table starts with two rows for padding

# Buffers that old checkpoints carry, and the second name of a tied head.
_IGNORABLE = re.compile(r"rotary_emb\.inv_freq$|masked_bias$|decoder\.version$")


def weight_names(config: ModelConfig) -> WeightNames:
    return LLAMA_NAMES if config.rope is not None else OPT_NAMES


def is_ignorable(name: str, config: ModelConfig) -> bool:
    """True for a tensor that may be in the checkpoint without being needed."""
    return bool(_IGNORABLE.search(name)) or (config.is_tied and name == "lm_head.weight")


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Tensor name -> shape, linear weights as [out_features, in_features]."""
    return dict(_expected(config, weight_names(config)))


def _expected(config: ModelConfig, names: WeightNames) -> Iterator[tuple[str, Shape]]:
    hidden, embed = config.hidden_size, config.embed_size
    yield f"{names.embed}.weight", (config.vocab_size, embed)
    if config.rope is None:
        yield f"{names.positions}.weight", (config.max_positions + LEARNED_POSITION_OFFSET, hidden)
    if embed != hidden:
        yield f"{names.project_in}.weight", (hidden, embed)
        yield f"{names.project_out}.weight", (embed, hidden)
    for layer in range(config.num_layers):
        yield from _expected_in_layer(config, names, names.layer.format(layer))
    if config.has_final_norm:
        yield from _norm(names.final_norm, config)
    if not config.is_tied:
        yield f"{names.lm_head}.weight", (config.vocab_size, embed)


def _expected_in_layer(config: ModelConfig, names: WeightNames, prefix: str) -> Iterator[tuple[str, Shape]]:
    hidden, inner, query_size = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
    yield from _norm(prefix + names.attention_norm, config)
    yield from _linear(prefix + names.q, (query_size, hidden), config.has_qkv_bias)
    for name in (names.k, names.v):
        yield from _linear(prefix + name, (config.kv_size, hidden), config.has_qkv_bias)
    if config.has_qk_norm:
        for name in (names.q_norm, names.k_norm):
            yield f"{prefix}{name}.weight", (config.head_dim,)
    yield from _linear(prefix + names.output, (hidden, query_size), config.has_output_bias)
    yield from _norm(prefix + names.mlp_norm, config)
    for name in names.up:
        yield from _linear(prefix + name, (inner, hidden), config.has_mlp_bias)
    yield from _linear(prefix + names.down, (hidden, inner), config.has_mlp_bias)


def _linear(name: str, shape: Shape, has_bias: bool) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", shape
    if has_bias:
        yield f"{name}.bias", shape[:1]


def _norm(name: str, config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    if config.has_norm_weights:
        yield f"{name}.weight", (config.hidden_size,)
        if not config.is_rms_norm:
            yield f"{name}.bias", (config.hidden_size,)
