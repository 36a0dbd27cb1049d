"""One request's place in its grammar, and which tokens may come next."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLMatcher

Words = npt.NDArray[np.uint32]  # a bit per token, the lowest first

_TOO_COMPLEX = "the grammar became too complex to follow"


class Matcher:
    """Moved on by one thread at a time; whoever reads the rest has called wait()."""

    __slots__ = ("_inner", "_stop_bits", "_stop_tokens", "_text_bits", "mask", "problem", "ready")

    def __init__(self, inner: LLMatcher, end_tokens: Sequence[int], stop_tokens: Sequence[int], num_words: int) -> None:
        """end_tokens: llguidance's; stop_tokens: the request's own, which take their place."""
        self._inner = inner
        self._stop_tokens = frozenset(stop_tokens)
        self._stop_bits = _bits(stop_tokens, num_words)
        self._text_bits = ~(_bits(end_tokens, num_words) | self._stop_bits)
        self.mask: Words = np.zeros(num_words, np.uint32)
        self.problem: str | None = None  # why the request cannot go on
        self.ready: Future[None] | None = None  # done when the mask is that of the next token; None: it is

    @property
    def must_end(self) -> bool:
        """Nothing but a stop token may come."""
        return not (self.mask & self._text_bits).any()

    def wait(self) -> None:
        if self.ready is not None:
            self.ready.result()
            self.ready = None

    def advance(self, token: int) -> None:
        """After a token was sampled; then find_mask()."""
        if token not in self._stop_tokens and not self._inner.consume_token(token):
            self.problem = self._inner.get_error() or _TOO_COMPLEX

    def find_mask(self) -> None:
        found = np.frombuffer(self._inner.compute_bitmask(), np.uint32, len(self.mask))
        if self._inner.is_error():
            self.problem = self._inner.get_error() or _TOO_COMPLEX
            return
        self.mask = found & self._text_bits
        if self._inner.is_accepting():
            self.mask |= self._stop_bits


def _bits(tokens: Sequence[int], num_words: int) -> Words:
    words = np.zeros(num_words, np.uint32)
    for token in tokens:
        if 0 <= token < 32 * num_words:
            words[token // 32] |= np.uint32(1 << (token % 32))
    return words
