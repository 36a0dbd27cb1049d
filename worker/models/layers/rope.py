"""The table of cosines and sines by which queries and keys are rotated.

Sources: RoFormer (arXiv 2104.09864); position interpolation (arXiv 2306.15595); YaRN (arXiv 2309.00071), equations 17
to 22; the Llama 3.1 reference code for `llama3`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from worker.models.rope_config import RopeConfig


def rope_table(rope: RopeConfig, head_dim: int, num_positions: int) -> Tensor:
    """float32 [num_positions, head_dim]: head_dim / 2 cosines, then as many sines, of each position."""
    frequencies, amplitude = rope_frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * amplitude


def rope_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Radians per position of each dimension pair, float32 [head_dim / 2], and the factor on cosines and sines."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.rope_type == "linear":
        return frequencies / rope.factor, 1.0
    if rope.rope_type == "llama3":
        return _llama3(rope, frequencies), 1.0
    if rope.rope_type == "yarn":
        return _yarn(rope, frequencies), _yarn_amplitude(rope)
    return frequencies, 1.0


def _llama3(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Slow pairs are interpolated, fast ones kept, with a ramp over rotations per original context between."""
    rotations = rope.original_max_positions * frequencies / (2 * math.pi)
    kept = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return _blend(frequencies, rope.factor, kept.clamp(0, 1))


def _yarn(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Like llama3, but the ramp is linear in the pair's index, between two numbers of rotations."""
    num_pairs = len(frequencies)
    low, high = (_pair_with_rotations(rope, num_pairs, n) for n in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * num_pairs - 1)
    high += 0.001 if low == high else 0  # a step instead of a division by zero
    kept = 1 - (torch.arange(num_pairs, dtype=torch.float32) - low) / (high - low)
    return _blend(frequencies, rope.factor, kept.clamp(0, 1))


def _pair_with_rotations(rope: RopeConfig, num_pairs: int, num_rotations: float) -> float:
    """Fractional index of the pair that turns num_rotations times over the original context."""
    wavelength = rope.original_max_positions / (num_rotations * 2 * math.pi)
    return num_pairs * math.log(wavelength) / math.log(rope.theta)


def _yarn_amplitude(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _blend(frequencies: Tensor, factor: float, kept: Tensor) -> Tensor:
    """kept 1: as trained; kept 0: interpolated by factor."""
    return frequencies * kept + frequencies / factor * (1 - kept)
