"""A checkpoint's config.json, normalised: the one place that knows how each family spells its features."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worker.base.errors import CheckpointError, UnsupportedModelError
from worker.models.config_fields import MAX_SIZE, checked_fields
from worker.models.quantized.quantization_config import CheckpointQuantization, parse_quantization
from worker.models.rope_config import RopeConfig, parse_rope

ACTIVATIONS = ("silu", "relu", "gelu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything DecoderModel needs to know; the same words for every family."""

    architecture: str
    vocab_size: int
    hidden_size: int
    embed_size: int  # width of the token embeddings; other than hidden_size only with projections in and out (OPT)
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int  # tokens of context that the checkpoint was made for, RoPE scaling included
    rope: RopeConfig | None  # None: learned position embeddings
    activation: str  # silu is gated (SwiGLU); relu and gelu are plain
    is_rms_norm: bool  # False: LayerNorm with mean and bias
    norm_eps: float
    has_norm_weights: bool = True  # False: normalise only
    is_norm_first: bool = True  # False: norms after each residual addition
    has_final_norm: bool = True
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False  # RMSNorm on each head of q and k, before rotation
    is_tied: bool = False  # the output head is the token embedding
    has_head: bool = True  # False: the checkpoint is of the bare model, for embeddings
    sliding_windows: tuple[int, ...]  # per layer, tokens; 0: full attention
    dtype: str | None = None  # as the checkpoint states it
    quantization: CheckpointQuantization | None = None  # how it has rounded its weights

    @property
    def kv_size(self) -> int:
        """d_kv: elements of one token's K (or V) in one layer."""
        return self.num_kv_heads * self.head_dim


def read_model_config(folder: Path) -> ModelConfig:
    """Raises CheckpointError if config.json is absent or damaged, UnsupportedModelError if we cannot run it."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no config.json; a model is a directory in Hugging Face format") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from None
    return parse_model_config(config)


def parse_model_config(given: object) -> ModelConfig:
    """Of what config.json holds. Raises CheckpointError or UnsupportedModelError."""
    config = checked_fields(given)
    names = config.get("architectures") or []
    architecture = next((name for name in names if name in _PARSERS), None)
    if architecture is None:
        found = ", ".join(names) or "none"
        raise UnsupportedModelError(f"architecture {found} is not supported; supported: {', '.join(_PARSERS)}")
    quantization = parse_quantization(config.get("quantization_config"))
    try:
        parsed = replace(_PARSERS[architecture](architecture, config), quantization=quantization)
    except KeyError as error:
        raise CheckpointError(f"config.json lacks {error.args[0]}, which {architecture} needs") from None
    _check(parsed)
    return parsed


def _parse_llama_like(architecture: str, config: Mapping[str, Any]) -> ModelConfig:
    """Llama, Mistral, Qwen2, Qwen3: they differ in biases, QK-norm and windows only."""
    is_qwen2, is_qwen3 = architecture.startswith("Qwen2"), architecture.startswith("Qwen3")
    is_bare = architecture.endswith("Model")
    num_heads, num_layers = config["num_attention_heads"], config["num_hidden_layers"]
    has_attention_bias = bool(config.get("attention_bias", False))
    rope = parse_rope(config)
    return ModelConfig(
        architecture=architecture,
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        embed_size=config["hidden_size"],
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        head_dim=config.get("head_dim") or (128 if is_qwen3 else config["hidden_size"] // num_heads),
        intermediate_size=config["intermediate_size"],
        max_positions=_scaled_max_positions(config["max_position_embeddings"], rope),
        rope=rope,
        activation=config.get("hidden_act", "silu"),
        is_rms_norm=True,
        norm_eps=config.get("rms_norm_eps", 1e-6),
        has_qkv_bias=is_qwen2 or has_attention_bias,
        has_output_bias=has_attention_bias and not is_qwen2,
        has_mlp_bias=bool(config.get("mlp_bias", False)),
        has_qk_norm=is_qwen3,
        is_tied=is_bare or bool(config.get("tie_word_embeddings", False)),
        has_head=not is_bare,
        sliding_windows=_sliding_windows(architecture, config, num_layers),
        dtype=config.get("dtype") or config.get("torch_dtype"),
    )


def _parse_opt(architecture: str, config: Mapping[str, Any]) -> ModelConfig:
    num_heads, num_layers = config["num_attention_heads"], config["num_hidden_layers"]
    has_bias, is_norm_first = bool(config.get("enable_bias", True)), bool(config.get("do_layer_norm_before", True))
    return ModelConfig(
        architecture=architecture,
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        embed_size=config.get("word_embed_proj_dim") or config["hidden_size"],
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=config["hidden_size"] // num_heads,
        intermediate_size=config["ffn_dim"],
        max_positions=config["max_position_embeddings"],
        rope=None,
        activation=config.get("activation_function", "relu"),
        is_rms_norm=False,
        norm_eps=1e-5,
        has_norm_weights=bool(config.get("layer_norm_elementwise_affine", True)),
        is_norm_first=is_norm_first,
        has_final_norm=is_norm_first and not config.get("_remove_final_layer_norm", False),
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_mlp_bias=has_bias,
        is_tied=bool(config.get("tie_word_embeddings", True)),
        sliding_windows=(0,) * num_layers,
        dtype=config.get("dtype") or config.get("torch_dtype"),
    )


_PARSERS: dict[str, Callable[[str, Mapping[str, Any]], ModelConfig]] = {
    "LlamaForCausalLM": _parse_llama_like,
    "MistralForCausalLM": _parse_llama_like,
    "Qwen2ForCausalLM": _parse_llama_like,
    "Qwen3ForCausalLM": _parse_llama_like,
    **dict.fromkeys(("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model"), _parse_llama_like),
    "OPTForCausalLM": _parse_opt,
}


def _scaled_max_positions(max_positions: int, rope: RopeConfig) -> int:
    """llama3 checkpoints state their extended length; yarn and linear ones often the length before scaling."""
    if rope.rope_type == "yarn":
        return max(max_positions, round(rope.factor * rope.original_max_positions))
    if rope.rope_type == "linear":
        return round(rope.factor * max_positions)
    return max_positions


def _sliding_windows(architecture: str, config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    is_mistral = architecture.startswith("Mistral")
    window = config.get("sliding_window", 4096 if is_mistral else None) or 0
    if not is_mistral and not config.get("use_sliding_window", False):
        window = 0
    first = 0 if is_mistral else config.get("max_window_layers", num_layers)
    first = min(first, num_layers)
    kinds = config.get("layer_types") or ["full_attention"] * first + ["sliding_attention"] * (num_layers - first)
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(f"layer type {kind!r} is not supported; full and sliding attention are")
    if len(kinds) < num_layers:
        raise CheckpointError(f"config.json: layer_types names {len(kinds)} of {num_layers} layers")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds[:num_layers])


def _check(config: ModelConfig) -> None:
    if config.activation not in ACTIVATIONS or (config.activation == "silu") != config.is_rms_norm:
        raise UnsupportedModelError(
            f"activation {config.activation!r} is not supported for {config.architecture}; "
            f"supported: {'silu' if config.is_rms_norm else 'relu, gelu'}"
        )
    if config.head_dim < 1 or (config.rope is not None and config.head_dim % 2):
        raise CheckpointError(
            f"config.json: heads of {config.head_dim} elements cannot be "
            f"{'rotated' if config.head_dim else 'computed with'}: check head_dim, hidden_size and num_attention_heads"
        )
    if config.max_positions > MAX_SIZE:
        raise CheckpointError(f"config.json: a context of {config.max_positions} tokens is beyond all memory")
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"config.json: num_attention_heads ({config.num_heads}) is not a multiple of "
            f"num_key_value_heads ({config.num_kv_heads})"
        )
