"""Writes a checkpoint of transformers as a GGUF file, named and laid out as llama.cpp's converter does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer

from worker.models.gguf_tensors import _stored_name

_NEIGHBOURS = {"llama": True, "mistral": True}


def write_gguf(path: Path, model: Any, stored_as: str = "F32", settings: dict[str, Any] | None = None) -> Path:
    """model: of transformers. stored_as: the type of its matrices. settings: more, without prefix the tokenizer's."""
    config = model.config
    family = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    for name, value in {**byte_vocabulary(config.vocab_size), **(settings or {})}.items():
        _add(writer, name if "." in name else f"tokenizer.ggml.{name}", value)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        module = name.split(".")[-2]
        if module in heads and family in _NEIGHBOURS:
            tensor = _to_neighbours(tensor, heads[module])
        kind = gguf.GGMLQuantizationType[stored_as if tensor.dim() == 2 else "F32"]
        values = gguf.quantize(tensor.float().numpy(), kind)
        writer.add_tensor(_stored_name(name), values, raw_dtype=kind)
    if config.rope_parameters.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_vocabulary(vocab_size: int) -> dict[str, Any]:
    """Enough of one for models that are given token ids."""
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [chr(0x100 + i) for i in range(vocab_size)],
        "merges": [f"{chr(0x100)} {chr(0x101)}"],
    }


def vocabulary_of(backend: Tokenizer) -> dict[str, Any]:
    """Of a tokenizer that merges pieces; those that it made first score best."""
    content = json.loads(backend.to_str())
    model, added = content["model"], {token["id"]: token for token in content["added_tokens"]}
    vocab = model["vocab"] | {token["content"]: i for i, token in added.items()}
    tokens = sorted(vocab, key=vocab.__getitem__)
    merges = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    kinds = [_kind(token, added.get(i), has_bytes=model["byte_fallback"]) for i, token in enumerate(tokens)]
    settings = {"tokens": tokens, "token_type": kinds}
    if not model["byte_fallback"]:
        return {"model": "gpt2", "merges": [" ".join(pair) for pair in merges], **settings}
    order = {token: rank for rank, token in reversed([*enumerate("".join(pair) for pair in merges)])}
    return {"model": "llama", "scores": [-float(order.get(token, len(tokens))) for token in tokens], **settings}


def _kind(token: str, added: Any, *, has_bytes: bool) -> int:
    if added is not None:
        return 2 if token == "<unk>" else 3 if added["special"] else 4
    return 6 if has_bytes and token.startswith("<0x") else 1


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)


def _to_neighbours(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows i and i + half of each head, next to each other."""
    rows = tensor.view(num_heads, 2, tensor.shape[0] // num_heads // 2, *tensor.shape[1:])
    return rows.transpose(1, 2).reshape(tensor.shape).contiguous()


def _llama3_divisors(config: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = config.rope_parameters["rope_theta"] ** (-torch.arange(len(scaled)) / len(scaled))
    return (plain / scaled).float().numpy()
