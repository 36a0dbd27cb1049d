"""A model that says what a small one says and takes as long as a large one: for what a small model's guesses bring.

No two trained models of one vocabulary come with the project but one, and of random ones none guesses another. So a
Llama checkpoint is made wider and deeper: what is added to the width is zero and stays zero, and added layers add
nothing, while products, attention and cache are those of the larger shape. A copy with noise in its weights is a small
model that is not always right.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

LAYER = "model.layers.{}.{}.weight"
COPIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class WideShape:
    hidden_size: int
    num_layers: int
    intermediate_size: int


def write_wide_model(source: Path, target: Path, shape: WideShape) -> None:
    """Raises ValueError for a checkpoint that is no Llama with tied embeddings, or not smaller."""
    config = json.loads((source / "config.json").read_text())
    if config["architectures"] != ["LlamaForCausalLM"] or not config["tie_word_embeddings"]:
        raise ValueError(f"{source} is no Llama with tied embeddings")
    hidden, layers, intermediate = (config[k] for k in ("hidden_size", "num_hidden_layers", "intermediate_size"))
    heads, kv_heads, head_dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    if shape.hidden_size < hidden or shape.num_layers < layers or shape.intermediate_size < intermediate:
        raise ValueError(f"{shape} is smaller than {source.name}")
    group = shape.hidden_size // (head_dim * kv_heads)  # heads of the wide model per head of K and V
    wide = config | {
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": group * kv_heads,
        "rms_norm_eps": config["rms_norm_eps"] * hidden / shape.hidden_size,  # the mean is over zeros, too
    }
    rows = head_rows(heads // kv_heads, kv_heads, group, head_dim)
    of_norm = math.sqrt(hidden / shape.hidden_size)
    old = load_file(source / "model.safetensors")
    generator = torch.Generator().manual_seed(0)

    def noise(*size: int) -> Tensor:
        return 0.02 * torch.randn(size, generator=generator)

    new = {
        "model.embed_tokens.weight": padded(
            old["model.embed_tokens.weight"], (config["vocab_size"], shape.hidden_size)
        ),
        "model.norm.weight": padded(of_norm * old["model.norm.weight"].float(), (shape.hidden_size,)),
    }
    kv_size, q_size = kv_heads * head_dim, group * kv_heads * head_dim
    for layer in range(shape.num_layers):
        is_added = layer >= layers
        sizes: dict[str, tuple[int, ...]] = {
            "input_layernorm": (shape.hidden_size,),
            "post_attention_layernorm": (shape.hidden_size,),
            "self_attn.q_proj": (q_size, shape.hidden_size),
            "self_attn.k_proj": (kv_size, shape.hidden_size),
            "self_attn.v_proj": (kv_size, shape.hidden_size),
            "self_attn.o_proj": (shape.hidden_size, q_size),
            "mlp.gate_proj": (shape.intermediate_size, shape.hidden_size),
            "mlp.up_proj": (shape.intermediate_size, shape.hidden_size),
            "mlp.down_proj": (shape.hidden_size, shape.intermediate_size),
        }
        for name, size in sizes.items():
            if is_added:  # what it finds reaches nobody
                is_output = name in ("self_attn.o_proj", "mlp.down_proj")
                tensor = torch.zeros(size) if is_output else torch.ones(size) if "norm" in name else noise(*size)
            else:
                part = old[LAYER.format(layer, name)].float()
                if "norm" in name:
                    part = part * of_norm
                if name == "self_attn.q_proj":
                    part = torch.zeros(q_size, hidden).index_copy_(0, rows, part)
                if name == "self_attn.o_proj":
                    part = torch.zeros(hidden, q_size).index_copy_(1, rows, part)
                tensor = padded(part, size)
            new[LAYER.format(layer, name)] = tensor
    write(source, target, wide, new)


def write_noisy_model(source: Path, target: Path, deviation: float) -> None:
    """Every weight changed by a random share of itself."""
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: tensor.float() * (1 + deviation * torch.randn(tensor.shape, generator=generator))
        for name, tensor in load_file(source / "model.safetensors").items()
    }
    write(source, target, json.loads((source / "config.json").read_text()), weights)


def head_rows(per_kv_head: int, kv_heads: int, group: int, head_dim: int) -> Tensor:
    """Where the rows of the small model's heads stand among those of the wide one: with the same K and V."""
    first = [kv * group + i for kv in range(kv_heads) for i in range(per_kv_head)]
    return torch.cat([torch.arange(head * head_dim, (head + 1) * head_dim) for head in first])


def padded(tensor: Tensor, size: tuple[int, ...]) -> Tensor:
    whole = torch.zeros(size)
    whole[tuple(slice(n) for n in tensor.shape)] = tensor.float()
    return whole


def write(source: Path, target: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        shutil.copyfile(source / name, target / name)
    (target / "config.json").write_text(json.dumps(config, indent=2))
    kept = {name: t.to(torch.float32 if "norm" in name else torch.bfloat16) for name, t in weights.items()}  # few
    save_file({name: t.contiguous() for name, t in kept.items()}, target / "model.safetensors")
