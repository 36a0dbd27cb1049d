"""How many of an answer's tokens are thinking: counted where tokens become text."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.model.detokenize import Detokenizer
from gateway.reasoning.thinking_reader import ThinkingReader


class ThinkingCount:
    """A detokenizer that counts until thinking has ended, token by token; from then on it is the one inside."""

    def __init__(self, inner: Detokenizer, reader: ThinkingReader) -> None:
        self._inner = inner
        self._reader = reader
        self._num_read = 0

    @property
    def num_tokens(self) -> int:
        """So far, the marks around thinking included."""
        return self._num_read if self._reader.has_thought else 0

    def add(self, token_ids: Sequence[int]) -> str:
        if self._reader.has_ended:
            return self._inner.add(token_ids)
        texts = []
        for token_id in token_ids:
            texts.append(self._inner.add((token_id,)))
            if not self._reader.has_ended:
                self._num_read += 1
                self._reader.feed(texts[-1])
        return "".join(texts)

    def flush(self) -> str:
        return self._inner.flush()
