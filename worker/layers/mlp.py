"""The feed-forward half of a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from worker import ops
from worker.layers.linear import Linear

# silu is gated: its input is [T, 2 * intermediate_size], gate first
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": ops.silu_mul, "relu": F.relu, "gelu": F.gelu}


class MLP:
    __slots__ = ("_activation", "_down", "_up")

    def __init__(self, up: Linear, down: Linear, activation: str) -> None:
        """up: hidden_size -> intermediate_size, or gate and up fused where the activation is gated."""
        self._up, self._down, self._activation = up, down, _ACTIVATIONS[activation]

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._activation(self._up(x)))
