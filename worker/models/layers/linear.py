"""Matrix products with a fixed weight: the choice between our packed CPU kernel and the device's library."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from torch import Tensor

from worker import ops
from worker.batch.host_memory import HugePageMemory
from worker.ops.weights import packed_linear
from worker.ops.weights.rounded_weight import RoundedWeight


class Linear(Protocol):
    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in_features] -> [T, out_features], in the dtype of x."""

    def last_columns(self, n: int) -> Linear:
        """The last n columns of the product alone, rows strided. Shares the weight. REQUIRES: it is not gated."""


class PackedLinear:
    """CPU: float32 activations, weight in the layout our kernel reads fastest, float32 accumulation."""

    __slots__ = ("packed",)

    def __init__(
        self,
        weight: Tensor | RoundedWeight,
        bias: Tensor | None,
        is_gated: bool,
        quantization: str | None,
        memory: HugePageMemory | None,
    ) -> None:
        self.packed = ops.pack_linear(weight, bias, is_gated=is_gated, quantization=quantization, memory=memory)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.packed)

    def last_columns(self, n: int) -> Linear:
        return _LastColumns(last_panels(self.packed, n), n)


class _LastColumns:
    """Whole panels are multiplied: the first may have columns before those that are wanted."""

    __slots__ = ("_n", "_packed")

    def __init__(self, packed: packed_linear.PackedLinear, n: int) -> None:
        self._packed, self._n = packed, n

    def __call__(self, x: Tensor) -> Tensor:
        return ops.linear(x, self._packed)[:, -self._n :]

    def last_columns(self, n: int) -> Linear:
        return _LastColumns(self._packed, n)


class DenseLinear:
    """CUDA: activations in the weight's dtype."""

    __slots__ = ("_bias", "_is_gated", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None, is_gated: bool) -> None:
        self._weight, self._bias, self._is_gated = weight, bias, is_gated

    def __call__(self, x: Tensor) -> Tensor:
        return ops.dense_linear(x, self._weight, self._bias, is_gated=self._is_gated)

    def last_columns(self, n: int) -> Linear:
        return DenseLinear(self._weight[-n:], None if self._bias is None else self._bias[-n:], False)


def last_panels(packed: packed_linear.PackedLinear, n: int) -> packed_linear.PackedLinear:
    """The panels that have the last n columns."""
    width = max(1, packed.panel_width)
    skipped = (packed.out_features - n) // width
    columns = skipped * width
    bias = None if packed.bias is None else packed.bias[columns:]
    return replace(packed, weight=packed.weight[skipped:], bias=bias, out_features=packed.out_features - columns)


def make_linear(
    weight: Tensor | RoundedWeight,
    bias: Tensor | None = None,
    *,
    is_gated: bool = False,
    quantization: str | None = None,
    memory: HugePageMemory | None = None,
) -> Linear:
    """weight [out_features, in_features], bias [out_features] or None. On CPU the arguments may be freed afterwards.

    is_gated: gate above up, [2 * out_features, in_features]; the product is silu(gate) * up.
    quantization, memory: how and where the weight is kept on CPU. A rounded weight is for the CPU.
    """
    if isinstance(weight, RoundedWeight) or weight.device.type == "cpu":
        return PackedLinear(weight, bias, is_gated, quantization, memory)
    return DenseLinear(weight, bias, is_gated)
