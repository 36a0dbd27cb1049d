"""What each token adds to a text, as bytes, for the decoders where a text is the sum of its tokens.

Byte-level BPE (GPT-2, OPT, Llama 3, Qwen) writes every byte as one printable character. Sentencepiece-style decoders
(Llama 2, Mistral, Gemma) write a space as U+2581 and bytes outside the vocabulary as <0xNN>. For any other decoder
there is no such table and the text has to be decoded window by window.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any, Protocol

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def is_byte_token(token: str) -> bool:
    return _BYTE_TOKEN.fullmatch(token) is not None


class Pieces(dict[int, bytes]):
    """token id -> the bytes it adds; filled as tokens are first seen. Unknown ids add nothing."""

    def __init__(self, backend: Tokenizer, style: DecoderStyle, skipped: frozenset[int]) -> None:
        super().__init__()
        self._backend = backend
        self._style = style
        self._skipped = skipped

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        piece = b"" if token is None or token_id in self._skipped else self._style.piece(token)
        self[token_id] = piece
        return piece


class DecoderStyle(Protocol):
    """How a token's string in the vocabulary becomes bytes of the text."""

    strips_first_space: bool

    def piece(self, token: str) -> bytes: ...


class ByteLevel:
    strips_first_space = False

    def piece(self, token: str) -> bytes:
        table = _byte_of_character()
        try:
            return bytes([table[character] for character in token])
        except KeyError:  # an added token, written as it reads
            return token.encode()


class Sentencepiece:
    def __init__(self, space: str, has_byte_tokens: bool, strips_first_space: bool) -> None:
        self._space = space
        self._has_byte_tokens = has_byte_tokens
        self.strips_first_space = strips_first_space

    def piece(self, token: str) -> bytes:
        if self._has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.replace(self._space, " ").encode()


def decoder_style(backend: Tokenizer) -> DecoderStyle | None:
    """None where a text is more than the sum of its tokens."""
    if backend.decoder is None:
        return None
    # The decoder alone: the whole tokenizer as text would walk over all ids, and one of 2**31 takes hours.
    decoder = json.loads(backend.decoder.__getstate__())
    if decoder["type"] == "Sequence" and len(decoder["decoders"]) == 1:
        decoder = decoder["decoders"][0]
    match decoder["type"]:
        case "ByteLevel":
            return ByteLevel()
        case "Metaspace":
            return Sentencepiece(decoder["replacement"], False, decoder.get("prepend_scheme", "always") != "never")
        case "Sequence":
            return _sequence_style(decoder["decoders"])
    return None


def _sequence_style(decoders: list[dict[str, Any]]) -> DecoderStyle | None:
    """Replace(U+2581 -> space), ByteFallback, Fuse and, if the first space goes, Strip(one space at the start)."""
    kinds = [decoder["type"] for decoder in decoders]
    if kinds not in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        return None
    space = decoders[0]["pattern"].get("String")
    if space is None or decoders[0]["content"] != " ":
        return None
    strip = decoders[3] if len(decoders) == 4 else None
    if strip is not None and (strip["content"], strip["start"], strip["stop"]) != (" ", 1, 0):
        return None
    return Sentencepiece(space, True, strip is not None)


@functools.cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and on, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
