"""Log-probabilities of chosen tokens, of the likeliest alternatives, or of those that a request names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from schedcore.api.types import TokenLogprobs
from worker.batch.staging import to_device, to_lists


def token_logprobs(logprobs: Tensor, token_ids: Tensor, num_alternatives: Sequence[int]) -> list[TokenLogprobs]:
    """logprobs float32 [n, vocab_size], token_ids int64 [n], num_alternatives per row -> one entry per row."""
    chosen = logprobs.gather(1, token_ids[:, None])  # [n, 1]
    ranks = (logprobs > chosen).sum(-1) + 1
    most = min(max(num_alternatives), logprobs.shape[1])
    values, indices = torch.topk(logprobs, most) if most else (chosen[:, :0], token_ids[:, None][:, :0])
    integers, floats = to_lists(
        torch.cat((token_ids[:, None], ranks[:, None], indices), 1), torch.cat((chosen, values), 1)
    )
    return [
        TokenLogprobs(token, logprob, rank, list(zip(top[:n], top_values[:n], strict=True)))
        for (token, rank, *top), (logprob, *top_values), n in zip(integers, floats, num_alternatives, strict=True)
    ]


def named_logprobs(logprobs: Tensor, named: Mapping[int, Sequence[int]]) -> dict[int, list[tuple[int, float]]]:
    """named: token ids by row of logprobs. Each row's ids, the likeliest first."""
    if not named:
        return {}
    rows = np.repeat(np.fromiter(named, np.int64), [len(ids) for ids in named.values()])
    tokens = np.concatenate([np.asarray(ids, np.int64) for ids in named.values()])
    at = to_device(np.stack((rows, tokens)), logprobs.device)
    (values,) = to_lists(logprobs[at[0], at[1]])
    found: dict[int, list[tuple[int, float]]] = {row: [] for row in named}
    for row, token, value in zip(rows.tolist(), tokens.tolist(), values, strict=True):
        found[row].append((token, value))
    return {row: sorted(pairs, key=lambda pair: -pair[1]) for row, pairs in found.items()}
