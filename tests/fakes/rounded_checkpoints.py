"""Checkpoints as GPTQ, AWQ and compressed-tensors write them, packed value by value as each format is defined.

Nothing here is shared with what reads them: words are put together in numpy, and the weights that they stand for are
what the format's definition says, (integer - zero point) * scale.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

Array = npt.NDArray[Any]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


@dataclass(frozen=True, kw_only=True)
class Rounding:
    num_bits: int = 4
    group_size: int = -1  # -1: a whole row
    is_symmetric: bool = True
    has_order: bool = False  # columns of a group lie apart


@dataclass(frozen=True)
class Rounded:
    """One weight [N, K]: integers from 0, zero points and scales [N, groups], the group of each column."""

    integers: Array
    zeros: Array
    scales: Array
    group_of: Array
    rounding: Rounding

    def dequantized(self) -> Array:
        n, k = self.integers.shape
        weight = np.empty((n, k), np.float32)
        for column in range(k):
            group = self.group_of[column]
            levels = self.integers[:, column].astype(np.float32) - self.zeros[:, group].astype(np.float32)
            weight[:, column] = levels * self.scales[:, group]
        return weight


def round_rows(weight: Array, rounding: Rounding, seed: int = 0) -> Rounded:
    """Not by calibration: integers of a group span its values. Scales are float16, as packers store them."""
    n, k = weight.shape
    size = k if rounding.group_size == -1 else rounding.group_size
    group_of = np.arange(k) // size
    if rounding.has_order:
        group_of = np.random.default_rng(seed).permutation(group_of)
    levels, half = 2**rounding.num_bits - 1, 2 ** (rounding.num_bits - 1)
    num_groups = int(group_of.max()) + 1
    scales, zeros = np.empty((n, num_groups), np.float16), np.full((n, num_groups), half)
    for group in range(num_groups):
        values = weight[:, group_of == group]
        low, high = np.minimum(values.min(1), 0), np.maximum(values.max(1), 0)
        if rounding.is_symmetric:
            scales[:, group] = 2 * np.maximum(high, -low) / levels
        else:
            scales[:, group] = (high - low) / levels
            zeros[:, group] = np.clip(np.round(-low / scales[:, group].astype(np.float32)), 0, levels)
    each_scale, each_zero = scales.astype(np.float32)[:, group_of], zeros[:, group_of]
    integers = np.clip(np.round(weight / each_scale) + each_zero, 0, levels).astype(np.int64)
    return Rounded(integers, zeros, scales.astype(np.float32), group_of, rounding)


def words(values: Array, num_bits: int) -> Array:
    """[rows, n] -> int32 [rows, n * bits / 32 rounded up], the first value in the lowest bits."""
    per_word = 32 // num_bits
    packed = np.zeros((len(values), -(-values.shape[1] // per_word)), np.uint32)
    for i in range(values.shape[1]):
        packed[:, i // per_word] |= values[:, i].astype(np.uint32) << np.uint32(num_bits * (i % per_word))
    return packed.view(np.int32)


def gptq(rounded: Rounded, version: int = 1) -> dict[str, torch.Tensor]:
    bits = rounded.rounding.num_bits
    stored_zeros = (rounded.zeros - 1) % 2**bits if version == 1 else rounded.zeros
    return _tensors(
        qweight=words(rounded.integers, bits).T,
        qzeros=words(stored_zeros.T, bits),
        scales=rounded.scales.T.astype(np.float16),
        g_idx=rounded.group_of.astype(np.int32),
    )


def awq(rounded: Rounded) -> dict[str, torch.Tensor]:
    def in_words(columns: Array) -> Array:  # [rows, N]
        mixed = np.empty_like(columns)
        for i in range(columns.shape[1]):
            mixed[:, i] = columns[:, i // 8 * 8 + AWQ_ORDER[i % 8]]
        return words(mixed, 4)

    return _tensors(
        qweight=in_words(rounded.integers.T),
        qzeros=in_words(rounded.zeros.T),
        scales=rounded.scales.T.astype(np.float16),
    )


def pack_quantized(rounded: Rounded) -> dict[str, torch.Tensor]:
    bits, tensors = rounded.rounding.num_bits, _compressed(rounded)
    tensors |= _tensors(weight_packed=words(rounded.integers, bits), weight_shape=np.array(rounded.integers.shape))
    if not rounded.rounding.is_symmetric:
        tensors |= _tensors(weight_zero_point=words(rounded.zeros.T, bits).T)
    return tensors


def int_quantized(rounded: Rounded) -> dict[str, torch.Tensor]:
    half = 2 ** (rounded.rounding.num_bits - 1)
    tensors = _compressed(rounded) | _tensors(weight=(rounded.integers - half).astype(np.int8))
    if not rounded.rounding.is_symmetric:
        tensors |= _tensors(weight_zero_point=(rounded.zeros - half).astype(np.int8))
    return tensors


def _compressed(rounded: Rounded) -> dict[str, torch.Tensor]:
    tensors = _tensors(weight_scale=rounded.scales)
    if rounded.rounding.has_order:
        tensors |= _tensors(weight_g_idx=rounded.group_of.astype(np.int32))
    return tensors


def _tensors(**arrays: Array) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def quantization_config(method: str, rounding: Rounding) -> dict[str, Any]:
    """method: gptq, gptq_v2, awq, pack-quantized or int-quantized."""
    bits, size = rounding.num_bits, rounding.group_size
    if method.startswith("gptq"):
        return {
            "quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": rounding.has_order,
            "sym": rounding.is_symmetric, "checkpoint_format": method,
        }  # fmt: skip
    if method == "awq":
        return {"quant_method": "awq", "bits": bits, "group_size": size, "zero_point": True, "version": "gemm"}
    weights = {
        "num_bits": bits, "type": "int", "symmetric": rounding.is_symmetric, "dynamic": False,
        "strategy": "channel" if size == -1 else "group", "group_size": None if size == -1 else size,
        "actorder": "group" if rounding.has_order else None,
    }  # fmt: skip
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {
        "quant_method": "compressed-tensors", "format": method, "config_groups": groups, "ignore": ["lm_head"],
        "quantization_status": "compressed", "kv_cache_scheme": None,
    }  # fmt: skip


PACKERS: dict[str, Callable[[Rounded], dict[str, torch.Tensor]]] = {
    "gptq": gptq,
    "gptq_v2": lambda rounded: gptq(rounded, version=2),
    "awq": awq,
    "pack-quantized": pack_quantized,
    "int-quantized": int_quantized,
}


def round_checkpoint(folder: Path, method: str, rounding: Rounding) -> dict[str, Array]:
    """Rewrites a checkpoint's linear layers but its head. What each weight is then, as float32, by name."""
    tensors = load_file(folder / "model.safetensors")
    meant: dict[str, Array] = {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        rounded = round_rows(tensors.pop(name).float().numpy(), rounding, seed=len(meant))
        meant[name] = rounded.dequantized()
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.{part}": tensor for part, tensor in PACKERS[method](rounded).items()}
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"quantization_config": quantization_config(method, rounding)}))
    return meant
