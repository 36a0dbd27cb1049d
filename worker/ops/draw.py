"""Random choice by inverse transform: one uniform number per row picks a token from the cumulated probabilities.

Each filter keeps the likeliest tokens, so together they are a threshold on probability. The order is min-p, top-k,
top-p; each sees what the one before it kept. Tokens exactly as likely as the last one kept are kept too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from worker.batch.staging import Parcel


@dataclass(frozen=True, slots=True)
class DrawParameters:
    """How each of n rows is drawn; arrays [n], contiguous. Filters: see keep_likeliest()."""

    temperature: npt.NDArray[np.float32]  # 0: greedy
    top_k: npt.NDArray[np.int64]  # < 1: all
    top_p: npt.NDArray[np.float32]
    min_p: npt.NDArray[np.float32]
    seed: npt.NDArray[np.uint64]  # the row's random number is uniforms(seed, index) of worker/ops/noise.py
    index: npt.NDArray[np.int64]

    def parcel(self) -> Parcel:
        """For a device where rows are drawn; tensors in the order of the fields."""
        return Parcel(self.temperature, self.top_k, self.top_p, self.min_p, self.seed, self.index)


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """weights [n, vocab_size], probabilities up to a factor; uniform float64 [n] in [0, 1) -> int64 [n].

    The first token whose cumulated weight exceeds uniform times the total: never one of weight 0.
    """
    cumulated = weights.cumsum(-1, dtype=torch.float64)
    places = torch.searchsorted(cumulated, uniform[:, None] * cumulated[:, -1:], right=True)
    return places[:, 0].clamp_(max=weights.shape[1] - 1)  # beyond the end only where the model gave NaN


def keep_likeliest(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """probs [n, vocab_size] with 0 for tokens that the filters drop. top_k int64 [n]; top_p, min_p float32 [n].

    top_k < 1, top_p 1 and min_p 0 keep everything.
    """
    vocab_size = probs.shape[1]
    ranked = _descending(probs)
    cumulated = ranked.cumsum(-1, dtype=torch.float64)
    num_kept = (ranked >= min_p[:, None] * ranked[:, :1]).sum(-1)
    num_kept = torch.minimum(num_kept, torch.where(top_k > 0, top_k, vocab_size)).clamp_(min=1)  # 0: the model gave NaN
    mass = cumulated.gather(1, num_kept[:, None] - 1)
    nucleus = (cumulated < top_p[:, None] * mass).sum(-1) + 1
    num_kept = torch.where(top_p < 1, torch.minimum(nucleus, num_kept), num_kept)
    return probs * (probs >= ranked.gather(1, num_kept[:, None] - 1))


def _descending(probs: Tensor) -> Tensor:
    """Each row sorted. NumPy sorts floats with vector instructions, ten times as fast as torch does on CPU."""
    if probs.device.type == "cpu":
        return torch.from_numpy(np.sort(probs.numpy(), axis=-1)).flip(-1)
    return probs.sort(dim=-1, descending=True).values
