"""What has to be held back of a text that comes in pieces, until it is clear whether a mark begins."""

from __future__ import annotations

MAX_SPACE = 256  # of whitespace at a text's end that is looked at: it is held back again with every piece


def num_held(text: str, mark: str) -> int:
    """Of its last characters: whitespace that may stand before the mark, and as much of the mark as there is."""
    start = len(text)
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            start -= length
            break
    return len(text) - len(without_space(text[:start]))


def without_space(text: str) -> str:
    """Without the whitespace at its end."""
    tail = text[-MAX_SPACE:]
    return text[: len(text) - len(tail)] + tail.rstrip()
