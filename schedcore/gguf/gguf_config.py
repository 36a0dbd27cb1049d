"""A GGUF file's settings as the config.json and generation_config.json that the same checkpoint has on the hub."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from schedcore.gguf.gguf_file import GgufError, GgufFile

# What llama.cpp calls a family -> its architecture on the hub. Mistral's older models say llama.
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ROPE_FREQUENCIES = "rope_freqs.weight"  # by what each frequency is divided: Llama 3.1 and its successors
_DTYPES = {"F32": "float32", "F16": "float16"}  # of what is stored as it is; blocks are computed with in bfloat16
_DEFAULT_THETA = 10000.0
# Of Llama 3.1, 3.2 and 3.3; `factor` is what differs.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def config_json(file: GgufFile, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Raises GgufError for a family that is not in ARCHITECTURES, and for settings that are missing."""
    family = settings.get("general.architecture")
    if family not in ARCHITECTURES:
        raise GgufError(
            f"{file.path}: architecture {family!r} is not supported in GGUF; supported: {', '.join(ARCHITECTURES)}"
        )
    given = _Settings(file, settings, f"{family}.")
    shapes = file.shapes()
    num_heads = given.number("attention.head_count")
    head_dim = settings.get(f"{family}.attention.key_length") or given.number("embedding_length") // num_heads
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": given.rows("token_embd.weight"),
        "hidden_size": given.number("embedding_length"),
        "intermediate_size": given.number("feed_forward_length"),
        "num_hidden_layers": given.number("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": settings.get(f"{family}.attention.head_count_kv") or num_heads,
        "head_dim": head_dim,
        "max_position_embeddings": given.number("context_length"),
        "rms_norm_eps": given.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": settings.get(f"{family}.rope.freq_base", _DEFAULT_THETA),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": family == "llama" and "blk.0.attn_q.bias" in shapes,
        "dtype": _dtype(file),
        **_end_of_text(settings),
    }
    window = settings.get(f"{family}.attention.sliding_window")
    if window and family == "llama":
        config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
    scaling = _rope_scaling(file, given, config)
    return config if scaling is None else config | {"rope_scaling": scaling}


def _end_of_text(settings: Mapping[str, Any]) -> dict[str, Any]:
    ids = [settings.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    ends = list(dict.fromkeys(token_id for token_id in ids if token_id is not None))
    bos = settings.get("tokenizer.ggml.bos_token_id")
    return ({} if bos is None else {"bos_token_id": bos}) | ({"eos_token_id": ends} if ends else {})


def _dtype(file: GgufFile) -> str:
    shapes = file.shapes()
    kinds = Counter(kind for name, kind in file.types().items() if len(shapes[name]) == 2)
    ((kind, _),) = kinds.most_common(1) or [("F32", 0)]
    return _DTYPES.get(kind, "bfloat16")


def _rope_scaling(file: GgufFile, given: _Settings, config: Mapping[str, Any]) -> dict[str, Any] | None:
    if ROPE_FREQUENCIES in file.shapes():
        return _llama3_scaling(file, config["rope_theta"])
    kind = given.optional("rope.scaling.type")
    if kind in (None, "none"):
        return None
    factor = given.number("rope.scaling.factor")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = given.optional("rope.scaling.original_context_length")
        return {"rope_type": "yarn", "factor": factor} | (
            {} if original is None else {"original_max_position_embeddings": original}
        )
    raise GgufError(f"{file.path}: rope scaling {kind!r} is not supported; none, linear and yarn are")


def _llama3_scaling(file: GgufFile, theta: float) -> dict[str, Any]:
    """The divisors are made from four numbers, of which three are the same in all models that have them."""
    divisors = file.read(ROPE_FREQUENCIES).reshape(-1)
    factor = float(divisors.max())
    wavelengths = 2 * math.pi * theta ** (np.arange(len(divisors)) / len(divisors))
    turns = _LLAMA3["original_max_position_embeddings"] / wavelengths
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if not np.allclose(divisors, expected, rtol=1e-3):
        raise GgufError(f"{file.path}: {ROPE_FREQUENCIES} are not those of Llama 3.1 and its successors")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


class _Settings:
    """Of one family, with errors that name what is missing."""

    def __init__(self, file: GgufFile, settings: Mapping[str, Any], prefix: str) -> None:
        self._file, self._settings, self._prefix = file, settings, prefix

    def number(self, name: str) -> Any:
        value = self._settings.get(self._prefix + name)
        if not isinstance(value, int | float) or value <= 0:
            raise GgufError(f"{self._file.path}: {self._prefix}{name} is {value!r}, not a number above 0")
        return value

    def optional(self, name: str) -> Any:
        return self._settings.get(self._prefix + name)

    def rows(self, tensor: str) -> int:
        shape = self._file.shapes().get(tensor)
        if shape is None or len(shape) != 2:
            raise GgufError(f"{self._file.path} has no tensor {tensor}")
        return shape[0]
