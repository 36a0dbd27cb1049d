"""A weight in integers: as a quantization of ours rounds it, and as a checkpoint that comes rounded has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from worker.ops.weights import panels

INT8, INT4, INT8_WEIGHTS = "int8", "int4", "int8-weights"  # quantizations; schedcore/api/config.py


class _Form(NamedTuple):
    block: int | None  # values of a row with one scale; None: all of them
    least: int
    most: int
    scale_dtype: torch.dtype


_FORMS = {
    INT4: _Form(panels.INT4_BLOCK, -8, 7, torch.float16),
    INT8: _Form(panels.INT8_BLOCK, -128, 127, torch.float32),
    INT8_WEIGHTS: _Form(None, -127, 127, torch.float32),  # linear_bf16.h unpacks no other
}


@dataclass(frozen=True, slots=True)
class RoundedWeight:
    """What pack() puts into panels."""

    integers: Tensor  # int8 [N, K]
    scales: Tensor  # float16 or float32 [N, blocks of a row]
    quantization: str

    @property
    def shape(self) -> tuple[int, int]:
        return self.integers.shape[0], self.integers.shape[1]

    def dequantized(self) -> Tensor:
        """float32 [N, K]."""
        in_features = self.shape[1]
        block = _FORMS[self.quantization].block or in_features
        return self.integers * self.scales.float().repeat_interleave(block, dim=1)[:, :in_features]


def round_weight(weight: Tensor, quantization: str) -> RoundedWeight:
    """weight [N, K], each block to the nearest. Raises ValueError for a quantization that there is not."""
    rounders = {INT8: panels.quantize_blocks, INT4: panels.quantize_int4, INT8_WEIGHTS: panels.quantize}
    if quantization not in rounders:
        raise ValueError(f"there is no quantization {quantization!r}")
    integers, scales = rounders[quantization](weight)
    return RoundedWeight(integers, scales.view(len(integers), -1), quantization)


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A checkpoint's: weight[n, k] = integers[n, k] * scales[n, group_of[k]]."""

    integers: Tensor  # int16 [N, K], less their zero points
    scales: Tensor  # float32 [N, groups]
    group_of: Tensor  # int64 [K]

    def dequantized(self) -> Tensor:
        """float32 [N, K]."""
        return self.integers * self.scales[:, self.group_of]

    def as_rounded(self, quantization: str) -> RoundedWeight | None:
        """The same numbers in blocks of ours, or None where these cannot say them."""
        form = _FORMS[quantization]
        in_features = len(self.group_of)
        block = form.block or in_features
        groups = self.group_of[::block]
        if not torch.equal(groups.repeat_interleave(block)[:in_features], self.group_of):
            return None  # a block has columns of several groups
        scales = self.scales[:, groups]
        stored = scales.to(form.scale_dtype)
        if not torch.equal(stored.float(), scales) or not self._is_within(form.least, form.most):
            return None
        return RoundedWeight(self.integers.to(torch.int8), stored, quantization)

    def _is_within(self, least: int, most: int) -> bool:
        low, high = torch.aminmax(self.integers)
        return least <= int(low) and int(high) <= most


def stacked(weights: Sequence[GroupedWeight], quantization: str) -> RoundedWeight | None:
    """One above the other, if all of them can be said in that quantization."""
    parts = []
    for weight in weights:
        rounded = weight.as_rounded(quantization)
        if rounded is None:
            return None
        parts.append(rounded)
    return RoundedWeight(
        torch.cat([part.integers for part in parts]), torch.cat([part.scales for part in parts]), quantization
    )
