"""Log-probabilities of chosen tokens and of the likeliest alternatives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from schedcore.types import TokenLogprobs
from worker.staging import to_lists


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
