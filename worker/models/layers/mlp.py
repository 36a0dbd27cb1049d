"""The feed-forward half of a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from worker.models.layers.linear import Linear

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class MLP:
    __slots__ = ("_activation", "down", "up")

    def __init__(self, up: Linear, down: Linear, activation: str | None) -> None:
        """up: hidden_size -> intermediate_size. activation None: `up` is gated, which is an activation already."""
        self.up, self.down = up, down
        self._activation = None if activation is None else _ACTIVATIONS[activation]

    def __call__(self, x: Tensor) -> Tensor:
        up = self.up(x)
        return self.down(up if self._activation is None else self._activation(up))
