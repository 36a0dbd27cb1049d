"""Long texts in pieces whose tokens, one after the other, are those of the whole.

Byte-level tokenizers end a word where a letter is followed by a space or a full stop, and look at nothing before it
when they go on there. So a long text takes many short turns of a thread instead of a long one, and is given up as soon
as it has too many tokens. Other tokenizers get their texts whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer as Backend

from gateway.model.work_pool import Work
from gateway.protocol.errors import InvalidRequestError

PIECE_CHARACTERS = 65_536
MAX_PIECE_CHARACTERS = 2**20  # encoding takes some hundred bytes of memory per character
_CUT = re.compile(r"(?<=[^\W\d_])[ ,.，。、](?=[^\W\d_])")


def pieces(text: str, may_cut: bool) -> Iterator[str]:
    """Raises InvalidRequestError where a piece would be too long."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        cut = _CUT.search(text, start + PIECE_CHARACTERS) if may_cut else None
        end = cut.start() if cut else len(text)
        if end - start > MAX_PIECE_CHARACTERS:
            raise InvalidRequestError(
                f"More than {MAX_PIECE_CHARACTERS} characters of text cannot be tokenised in one piece: send less, or "
                "token ids.",
                code="text_too_long",
            )
        yield text[start:end]
        start = end
    yield text[start:]


def encoding_here(backend: Backend, pieces: Iterable[str], max_tokens: int | None) -> Work[list[int] | None]:
    """In this thread, without special tokens around it; None where there are more than max_tokens."""
    ids: list[int] = []
    for piece in pieces:
        (encoding,) = backend.encode_batch_fast([piece], add_special_tokens=False)
        ids += encoding.ids
        if max_tokens is not None and len(ids) > max_tokens:
            return None
        yield len(piece)
    return ids
