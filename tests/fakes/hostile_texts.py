"""Texts that bring out the worst in parsers, encoders and matchers: text of n characters by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable


def _repeated(unit: str) -> Callable[[int], str]:
    return lambda n: (unit * (n // len(unit) + 1))[:n]


def _cycled(first: int, last: int) -> Callable[[int], str]:
    """Characters of a script in an order that repeats late."""

    def make(n: int) -> str:
        span = last - first
        return "".join(chr(first + i * i * 7919 % span) for i in itertools.islice(itertools.count(), n))

    return make


HOSTILE_TEXTS: dict[str, Callable[[int], str]] = {
    "words": _repeated("some ordinary words, "),
    "one letter": _repeated("x"),
    "base64": _cycled(0x41, 0x5B),
    "Chinese": _cycled(0x4E00, 0x9FA5),
    "Thai": _cycled(0x0E01, 0x0E2F),
    "spaces": _repeated(" "),
    "new lines": _repeated("\n"),
    "back-ticks": _repeated(" - at `$.a` in `"),
    "combining marks": _repeated("e\u0301\u0323"),
    "emoji": _repeated("\U0001f469\u200d\U0001f4bb"),
    "dots": _repeated("."),
    "half a stop string": _repeated("ab" * 100 + "c"),
    "escapes": _repeated('"\\\n'),
    "special tokens cut off": _repeated("<|im_start|"),
}
