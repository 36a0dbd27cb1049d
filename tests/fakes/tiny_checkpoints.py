"""Tiny random checkpoints of every family, written by transformers, which is also the oracle of what they generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB_SIZE = 211
MAX_POSITIONS = 512

_LLAMA_LIKE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": MAX_POSITIONS,
}
_OPT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_dim": 96,
    "max_position_embeddings": MAX_POSITIONS,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**_LLAMA_LIKE}),
    "llama-mha-tied": ("Llama", {**_LLAMA_LIKE, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-biases": ("Llama", {**_LLAMA_LIKE, "attention_bias": True, "mlp_bias": True}),
    "llama-linear-rope": (
        "Llama",
        {
            **_LLAMA_LIKE,
            "max_position_embeddings": MAX_POSITIONS // 4,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        },
    ),
    "llama-llama3-rope": ("Llama", {**_LLAMA_LIKE, "rope_parameters": _LLAMA3_ROPE}),
    "llama-yarn-rope": ("Llama", {**_LLAMA_LIKE, "rope_parameters": _YARN_ROPE}),
    "mistral": ("Mistral", {**_LLAMA_LIKE, "sliding_window": 24, "head_dim": 32}),
    "mistral-full": ("Mistral", {**_LLAMA_LIKE, "sliding_window": None}),
    "qwen2": ("Qwen2", {**_LLAMA_LIKE}),
    "qwen2-windows": (
        "Qwen2",
        {**_LLAMA_LIKE, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {**_LLAMA_LIKE, "head_dim": 32, "tie_word_embeddings": True}),
    "opt": ("OPT", {**_OPT}),
    "opt-norm-last": ("OPT", {**_OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "opt-bare": (
        "OPT",
        {**_OPT, "enable_bias": False, "layer_norm_elementwise_affine": False, "activation_function": "gelu"},
    ),
}


def make_model(family: str, seed: int = 0, **overrides: Any) -> Any:
    """A transformers model in float32 whose logits are spread enough that argmax is no accident."""
    name, parameters = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**parameters, **overrides})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    is_norm_first = parameters.get("do_layer_norm_before", True)
    layer_std, vector_std = (0.4, 0.2) if is_norm_first else (0.1, 0.02)  # else every output is the same token
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm_weight = "norm" in name and name.endswith("weight")
            std = vector_std if parameter.dim() == 1 else layer_std if "layers" in name else 0.2
            parameter.copy_(1 + 0.2 * noise if is_norm_weight else std * noise)
    return model


def write_checkpoint(folder: Path, family: str = "llama", seed: int = 0, **save_options: Any) -> Path:
    make_model(family, seed).save_pretrained(folder, **save_options)
    return folder


def greedy(folder: Path, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """What Hugging Face generates, exactly num_tokens for each prompt, all in one left-padded batch."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = model.generate(
        ids,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[:, width:].tolist()
