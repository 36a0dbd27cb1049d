"""Normalisation, alone and fused with the residual addition before it."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from worker import ops


class Norm(Protocol):
    def __call__(self, x: Tensor) -> Tensor:
        """[..., H] -> the same shape, contiguous, a tensor of its own."""

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual += x in place, then the norm of residual. x, residual [T, H]."""


class RMSNorm:
    __slots__ = ("eps", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return ops.add_rms_norm(x, residual, self.weight, self.eps)


class LayerNorm:
    """With mean and bias; weight and bias are None where the checkpoint has none."""

    __slots__ = ("_bias", "_eps", "_size", "_weight")

    def __init__(self, size: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
        self._size, self._weight, self._bias, self._eps = (size,), weight, bias, eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self._size, self._weight, self._bias, self._eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return self(residual.add_(x))


class NoNorm:
    """Where a checkpoint has no norm: the residual itself."""

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return residual.add_(x)
