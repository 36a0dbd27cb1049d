"""What has to be held back of a text that comes in pieces, until it is clear whether a mark begins."""

from __future__ import annotations


def num_held(text: str, mark: str) -> int:
    """Of its last characters: whitespace that may stand before the mark, and as much of the mark as there is."""
    start = len(text)
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            start -= length
            break
    return len(text) - len(text[:start].rstrip())
