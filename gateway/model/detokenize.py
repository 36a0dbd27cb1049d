"""Token ids -> text, incrementally: what has been handed out never changes and never ends inside a character.

The pieces handed out add up to what the tokenizer's own decoder makes of all ids at once; invalid UTF-8 shows
as U+FFFD.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer

from gateway.model.vocabulary import Pieces

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    def add(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete."""

    def flush(self) -> str:
        """What is held back, once the last token has been added."""


class PieceDetokenizer:
    """For decoders where a text is the sum of its tokens' bytes. O(1) per token."""

    __slots__ = ("_decode", "_drops_space", "_pieces")

    def __init__(self, pieces: Pieces, drops_space: bool) -> None:
        """`drops_space`: the text starts here, and its first space belongs to the tokenizer."""
        self._pieces = pieces
        self._decode = _utf8("replace").decode
        self._drops_space = drops_space

    def add(self, token_ids: Sequence[int]) -> str:
        pieces = self._pieces
        data = pieces[token_ids[0]] if len(token_ids) == 1 else b"".join([pieces[i] for i in token_ids])
        text = self._decode(data)
        return self._without_first_space(text) if self._drops_space and text else text

    def flush(self) -> str:
        return self._decode(b"", True)

    def _without_first_space(self, text: str) -> str:
        self._drops_space = False
        return text.removeprefix(" ")


class WindowDetokenizer:
    """For any decoder: decodes a window of tokens with and without the new ones and hands out the difference."""

    _MAX_HELD = 8  # tokens without a whole character; more is not text

    def __init__(self, backend: Tokenizer, context: Sequence[int], skip_special_tokens: bool) -> None:
        """`context`: the last tokens before the text, since a decoder may treat the first token of all differently."""
        self._backend = backend
        self._skip = skip_special_tokens
        self._shown = list(context)
        self._held: list[int] = []

    def add(self, token_ids: Sequence[int]) -> str:
        return "".join([self._add_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        return self._difference(is_last=True) if self._held else ""

    def _add_one(self, token_id: int) -> str:
        self._held.append(token_id)
        return self._difference(is_last=len(self._held) > self._MAX_HELD)

    def _difference(self, is_last: bool) -> str:
        before = self._decode(self._shown)
        after = self._decode(self._shown + self._held)
        if not is_last and (after.endswith("\ufffd") or len(after) <= len(before)):
            return ""
        self._shown, self._held = self._held, []
        return after[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=self._skip)
