"""The norms of each head of q and k before their rotation (Qwen3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class HeadNorms:
    q: Tensor  # [hd]
    k: Tensor  # [hd]
    eps: float
