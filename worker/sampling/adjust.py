"""Changes to logits before a token is chosen: bias, stop tokens that come too early, penalties.

All requests of a batch are adjusted together, as scattered elements of the flattened logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from worker.batch.staging import to_device
from worker.sampling.request_state import Needs, RequestState, TokenHistory


class AdjustedRow(NamedTuple):
    row: int  # of the logits
    state: RequestState
    num_output_tokens: int  # before this one
    history: TokenHistory | None  # where the request has penalties

    @property
    def is_too_early(self) -> bool:
        """To stop. A grammar that is at its end goes before: there is nothing else to say."""
        state = self.state
        if not state.needs & Needs.MIN_TOKENS or self.num_output_tokens >= state.min_tokens:
            return False
        return state.matcher is None or not state.matcher.must_end


def adjust(logits: Tensor, rows: Sequence[AdjustedRow]) -> None:
    """In place; logits [n, vocab_size]. Order: bias, forbidden stop tokens, penalties."""
    flat, width = logits.view(-1), logits.shape[1]
    biased = [r for r in rows if r.state.needs & Needs.BIAS]
    too_early = [r for r in rows if r.is_too_early]
    penalised = [r for r in rows if r.history is not None]
    if biased:
        at = _join([r.row * width + r.state.bias_tokens for r in biased], flat)
        flat.index_add_(0, at, _join([r.state.bias_values for r in biased], flat))
    if too_early:
        flat.index_fill_(0, _join([r.row * width + r.state.stop_tokens for r in too_early], flat), float("-inf"))
    if penalised:
        _penalise(flat, width, penalised)


def _penalise(flat: Tensor, width: int, rows: Sequence[AdjustedRow]) -> None:
    """Repetition divides positive logits and multiplies negative ones; presence and frequency subtract."""
    histories = [(r, r.history) for r in rows if r.history is not None]
    lengths = [len(history.tokens) for _, history in histories]
    at = _join([r.row * width + history.tokens for r, history in histories], flat)
    counts = _join([history.counts for _, history in histories], flat)
    repetition, presence, frequency = (
        _join([np.repeat(np.array(values, dtype=np.float32), lengths)], flat)
        for values in zip(
            *(
                (r.state.params.repetition_penalty, r.state.params.presence_penalty, r.state.params.frequency_penalty)
                for r in rows
            ),
            strict=True,
        )
    )
    values = flat[at]
    values = torch.where(values > 0, values / repetition, values * repetition)
    flat[at] = values - frequency * counts - presence * (counts > 0)


def _join(parts: Sequence[npt.NDArray[np.int64] | npt.NDArray[np.float32]], like: Tensor) -> Tensor:
    return to_device(np.concatenate(parts), like.device)
