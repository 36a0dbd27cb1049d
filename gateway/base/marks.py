"""The first of several marks in a text that comes in pieces; what may become one is held back."""

from __future__ import annotations

import re
from functools import cache


class Marks:
    def __init__(self, *marks: str, other: str = "") -> None:
        """other: a pattern of one character that counts as found, too, unless a mark begins with it."""
        self.marks = marks
        self._found = re.compile("|".join([*map(re.escape, marks), *([other] if other else [])]))

    @classmethod
    @cache
    def of(cls, *marks: str, other: str = "") -> Marks:
        return cls(*marks, other=other)

    def find(self, text: str, start: int) -> tuple[str, str | None, int]:
        """What stands before the first one, that one or None, and where the text is to be read from there."""
        found = self._found.search(text, start)
        end = len(text)
        if found is None or found[0] not in self.marks:
            end -= self._num_held(text, start)
        if found is not None and found.start() < end:
            return text[start : found.start()], found[0], found.end()
        return text[start:end], None, end

    def _num_held(self, text: str, start: int) -> int:
        """Of the last characters: as much of a mark as there is."""
        longest = min(max(map(len, self.marks)) - 1, len(text) - start)
        for length in range(longest, 0, -1):
            if any(len(mark) > length and text.endswith(mark[:length]) for mark in self.marks):
                return length
        return 0
