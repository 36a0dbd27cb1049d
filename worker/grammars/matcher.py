"""One request's place in its grammar, and which tokens may come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLMatcher

Words = npt.NDArray[np.uint32]  # a bit per token, the lowest first

_TOO_COMPLEX = "the grammar became too complex to follow"


# Tokens in a row that needed no mask, after which none is found in advance: even with models that know nothing, four
# times as many are then saved as come late (docs/log/2026-11-23-fewer-masks.md).
_FEW = 2


class Matcher:
    """Moved on by one thread at a time."""

    __slots__ = (
        "_end_tokens",
        "_inner",
        "_stop_bits",
        "_stop_tokens",
        "_text_bits",
        "address",
        "forced",
        "has_mask",
        "mask",
        "names_forced",
        "num_unaided",
        "problem",
        "request_id",
    )

    def __init__(self, inner: LLMatcher, end_tokens: Sequence[int], stop_tokens: Sequence[int], num_words: int) -> None:
        """end_tokens: llguidance's; stop_tokens: the request's own, which take their place."""
        self._inner = inner
        self._end_tokens = frozenset(end_tokens)
        self._stop_tokens = frozenset(stop_tokens)
        self._stop_bits = _bits(stop_tokens, num_words)
        self._text_bits = ~(_bits(end_tokens, num_words) | self._stop_bits)
        self.mask: Words = np.zeros(num_words, np.uint32)  # always the same memory
        self.address = self.mask.ctypes.data  # of the mask, asked for once: numpy takes its time
        self.has_mask = False  # the mask is that of the next token
        self.num_unaided = 0  # tokens in a row, up to now, that the model would have chosen without a mask
        self.problem: str | None = None  # why the request cannot go on
        self.request_id = 0  # where forced tokens are named
        self.names_forced = False  # the request takes forced tokens as they are
        self.forced: list[int] = []  # that come next, as far as find_forced() was asked here

    @property
    def wants_mask(self) -> bool:
        """The model is likely to choose a token that may not come."""
        return self.num_unaided < _FEW

    @property
    def must_end(self) -> bool:
        """Nothing but a stop token may come. REQUIRES: has_mask."""
        return not (self.mask & self._text_bits).any()

    def advance(self, token: int) -> None:
        """After a token was sampled; then find_mask(), or take()."""
        self.has_mask = False
        if token not in self._stop_tokens and not self._inner.consume_token(token):
            self._fail()

    def take(self, token: int) -> bool:
        """Moves on by a token if this place's mask, which need not be found, would allow it; else stays here."""
        inner = self._inner
        if token in self._stop_tokens:
            return self.problem is None and inner.is_accepting()
        if token < 0 or token in self._end_tokens or self.problem is not None:
            return False
        forced = inner.compute_ff_tokens()  # masks allow nothing else then, not even other tokens of the same text
        if forced and forced[0] != token:
            return False
        if not inner.try_consume_tokens([token]):
            return False
        self.has_mask = False
        self.num_unaided += 1
        return True

    def find_forced(self) -> bool:
        """Whether one token only may come next: it stands in `forced`, with those that may only come behind it.

        A mask would allow nothing else (tests/worker/grammars/test_forced_spans.py).
        """
        forced = [] if self.problem is not None else self._inner.compute_ff_tokens()
        for i, token in enumerate(forced):
            if token in self._stop_tokens or token in self._end_tokens:  # no mask allows it as text
                forced = forced[:i]
                break
        self.forced = forced
        return bool(forced)

    def follow_forced(self, num_tokens: int) -> None:
        """Moves on by the first of `forced`, which is empty then."""
        for token in self.forced[:num_tokens]:
            self.advance(token)
        self.forced = []

    def find_mask(self) -> None:
        """Of nothing, once there is a problem."""
        self.has_mask = True
        if self.problem is not None:
            return
        mask = self.mask
        self._inner.unsafe_compute_mask_ptr(self.address, mask.nbytes)
        if self._inner.is_error():
            self._fail()
            return
        np.bitwise_and(mask, self._text_bits, out=mask)
        if self._inner.is_accepting():
            np.bitwise_or(mask, self._stop_bits, out=mask)

    def _fail(self) -> None:
        self.problem = self._inner.get_error() or _TOO_COMPLEX
        self.mask.fill(0)


def _bits(tokens: Sequence[int], num_words: int) -> Words:
    words = np.zeros(num_words, np.uint32)
    for token in tokens:
        if 0 <= token < 32 * num_words:
            words[token // 32] |= np.uint32(1 << (token % 32))
    return words
