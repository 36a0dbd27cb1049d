"""Decoders with the shapes of real models and random weights, made where they run, without a checkpoint."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from worker.models.decoder import DecoderModel
from worker.models.loader import build_model
from worker.models.model_config import ModelConfig, parse_model_config
from worker.models.weight_names import expected_shapes

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151_936, "hidden_size": 1024, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
        "max_position_embeddings": 40_960, "rope_theta": 1_000_000, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 128_256, "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336,
        "max_position_embeddings": 131_072, "rope_theta": 500_000, "rms_norm_eps": 1e-5,
    },
    "tiny": {
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 211, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96,
        "max_position_embeddings": 512, "rope_theta": 10_000, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    },
}  # fmt: skip


class _RandomTensors:
    """Scaled so that activations keep their size; norms are ones."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._shapes, self._dtype, self._device = expected_shapes(config), dtype, device

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def read(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        return torch.randn(shape, dtype=self._dtype, device=self._device) / math.sqrt(shape[-1])


def make_decoder(
    name: str, dtype: torch.dtype, device: torch.device, max_positions: int
) -> tuple[DecoderModel, ModelConfig]:
    config = parse_model_config(CONFIGS[name])
    return build_model(config, _RandomTensors(config, dtype, device), dtype, device, max_positions), config


def num_streamed_weights(config: ModelConfig) -> int:
    """Elements that a decode step reads: all but an embedding that is no head."""
    sizes = {name: math.prod(shape) for name, shape in expected_shapes(config).items()}
    embedding = 0 if config.is_tied else config.vocab_size * config.embed_size
    return sum(sizes.values()) - embedding


def num_layer_weights(config: ModelConfig) -> int:
    """Elements that every token of a step is multiplied with."""
    return sum(math.prod(shape) for name, shape in expected_shapes(config).items() if ".layers." in name)
