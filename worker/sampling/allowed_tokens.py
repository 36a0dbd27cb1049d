"""Which tokens a request may still have, whatever the model thinks of them: `allowed_token_ids` and `bad_words`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from schedcore.api.types import SamplingParams

Words = npt.NDArray[np.uint32]  # a bit per token


class AllowedTokens:
    """Of one request. A bad word is a sequence of tokens: the last one is forbidden where the others have just come.

    A preempted request keeps what it has output, so nothing is to be restored here.
    """

    def __init__(self, params: SamplingParams, stop_tokens: Sequence[int], vocab_size: int) -> None:
        """stop_tokens: those that mask() can leave out."""
        num_words = (vocab_size + 31) // 32
        allowed = np.arange(vocab_size) if params.allowed_token_ids is None else params.allowed_token_ids
        single = [word[0] for word in params.bad_words if len(word) == 1]
        self._always = _bits(allowed, num_words) & ~_bits(single, num_words)
        self._without_stops = self._always & ~_bits(stop_tokens, num_words)
        self._words = [(word[:-1], word[-1]) for word in params.bad_words if len(word) > 1]
        self._recent: deque[int] = deque(maxlen=max((len(start) for start, _ in self._words), default=0))

    def mask(self, *, may_stop: bool, guessed: Sequence[int] = ()) -> Words:
        """Of the next token, behind those that are only guessed; not to be written to."""
        mask = self._always if may_stop else self._without_stops
        recent = [*self._recent, *guessed] if self._words else []
        forbidden = [end for start, end in self._words if recent[-len(start) :] == start]
        if forbidden:
            mask = mask & ~_bits(forbidden, len(mask))
        return mask

    def note(self, token: int) -> None:
        """After it was sampled."""
        self._recent.append(token)


def _bits(tokens: Sequence[int] | npt.NDArray[np.int64], num_words: int) -> Words:
    """Tokens beyond the last word have no bit."""
    ids = np.asarray(tokens, dtype=np.int64)
    is_set = np.zeros(32 * num_words, dtype=np.uint8)
    is_set[ids[ids < len(is_set)]] = 1
    return np.packbits(is_set, bitorder="little").view(np.uint32)
