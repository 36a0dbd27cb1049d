"""Random choice by inverse transform: one uniform number per row picks a token from the cumulated probabilities.

Filters keep a prefix of the tokens sorted by probability, so filtering is finding where the prefix ends. The order is
min-p, top-k, top-p; each sees what the one before it kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Most nuclei are smaller; rows whose prefix does not end within as many are sorted as a whole.
NUM_CANDIDATES = 256


def draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """probs [n, vocab_size], uniform float64 [n] in [0, 1) -> int64 [n]. A token of probability 0 is never drawn."""
    cumulated = probs.cumsum(-1, dtype=torch.float64)
    return _first_above(cumulated, uniform[:, None] * cumulated[:, -1:])


def draw_filtered(probs: Tensor, uniform: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Like draw(), from the tokens that pass the filters. top_k int64 [n], 0 for none; top_p, min_p float32 [n].

    The way a row is computed depends on the row alone, never on its neighbours.
    """
    vocab_size = probs.shape[1]
    num_candidates = min(NUM_CANDIDATES, vocab_size)
    chosen, is_certain = _draw_from_top(probs, num_candidates, uniform, top_k, top_p, min_p)
    if num_candidates < vocab_size and not bool(is_certain.all()):
        rest = (~is_certain).nonzero()[:, 0]
        chosen[rest], _ = _draw_from_top(probs[rest], vocab_size, uniform[rest], top_k[rest], top_p[rest], min_p[rest])
    return chosen


def _draw_from_top(
    probs: Tensor, num_candidates: int, uniform: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> tuple[Tensor, Tensor]:
    """Draws as if only the likeliest candidates existed; and for which rows that changes nothing."""
    vocab_size = probs.shape[1]
    if num_candidates < vocab_size:
        sorted_probs, token_ids = probs.topk(num_candidates)
    else:
        sorted_probs, token_ids = probs.sort(descending=True, stable=True)
    cumulated = sorted_probs.cumsum(-1, dtype=torch.float64)  # [n, num_candidates]
    limit = torch.where(top_k > 0, top_k, vocab_size)
    length = torch.minimum((sorted_probs >= min_p[:, None] * sorted_probs[:, :1]).sum(-1), limit)
    kept = cumulated.gather(1, length[:, None] - 1)[:, 0]  # probability mass that min-p and top-k leave

    ends_inside = (length < num_candidates) | (limit <= num_candidates)
    keeps_all = (min_p <= 0) & (limit >= vocab_size)
    kept = torch.where(keeps_all, 1.0, kept)
    nucleus = (cumulated < (top_p * kept)[:, None]).sum(-1) + 1
    is_certain = ends_inside | (keeps_all & (top_p < 1) & (nucleus <= num_candidates))
    length = torch.where(top_p < 1, torch.minimum(nucleus, length), length)

    mass = cumulated.gather(1, length[:, None] - 1)  # [n, 1]
    place = _first_above(cumulated, uniform[:, None] * mass)
    return token_ids.gather(1, torch.minimum(place, length - 1)[:, None])[:, 0], is_certain


def _first_above(cumulated: Tensor, values: Tensor) -> Tensor:
    """cumulated [n, m] ascending, values [n, 1] -> index of the first entry greater than the value, int64 [n]."""
    return torch.searchsorted(cumulated, values, right=True)[:, 0].clamp_(max=cumulated.shape[1] - 1)
