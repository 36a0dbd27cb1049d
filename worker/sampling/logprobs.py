"""Log-probabilities of chosen tokens and of the likeliest alternatives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from schedcore.types import TokenLogprobs


def token_logprobs(logprobs: Tensor, token_ids: Tensor, num_alternatives: Sequence[int]) -> list[TokenLogprobs]:
    """logprobs float32 [n, vocab_size], token_ids int64 [n], num_alternatives per row -> one entry per row."""
    chosen = logprobs.gather(1, token_ids[:, None])  # [n, 1]
    ranks = (logprobs > chosen).sum(-1) + 1
    most = min(max(num_alternatives), logprobs.shape[1])
    values, indices = torch.topk(logprobs, most) if most else (chosen[:, :0], token_ids[:, None][:, :0])
    columns = (token_ids.tolist(), chosen[:, 0].tolist(), ranks.tolist(), indices.tolist(), values.tolist())
    return [
        TokenLogprobs(token, logprob, rank, list(zip(top[:n], top_values[:n], strict=True)))
        for token, logprob, rank, top, top_values, n in zip(*columns, num_alternatives, strict=True)
    ]
