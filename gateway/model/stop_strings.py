"""Finds the first of several stop strings in a text that arrives in pieces (Aho and Corasick, 1975).

The stop string that is complete first wins; of several that end at the same character, the longest. So the answer
does not depend on how the text was cut, and what may be the beginning of a stop string is all that is held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """The automaton, immutable. A state is the longest suffix of the text so far that begins a stop string."""

    def __init__(self, strings: Sequence[str]) -> None:
        """REQUIRES: no string is empty."""
        self.next: list[dict[str, int]] = [{}]  # state -> character -> state
        self.fallback: list[int] = [0]  # state -> the longest proper suffix that is a state too
        self.depth: list[int] = [0]  # state -> number of characters it stands for
        self.match: list[int] = [0]  # state -> length of the longest stop string that ends here, 0 for none
        for string in strings:
            self._insert(string)
        self._link()
        self.first_characters = frozenset(self.next[0])

    def step(self, state: int, character: str) -> int:
        while state and character not in self.next[state]:
            state = self.fallback[state]
        return self.next[state].get(character, 0)

    def _insert(self, string: str) -> None:
        state = 0
        for character in string:
            if character not in self.next[state]:
                self.next[state][character] = len(self.next)
                self.next.append({})
                self.fallback.append(0)
                self.depth.append(self.depth[state] + 1)
                self.match.append(0)
            state = self.next[state][character]
        self.match[state] = len(string)

    def _link(self) -> None:
        """Breadth first, so that a state's fallback is complete before its own children need it."""
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self.next[state].items():
                self.fallback[child] = self.step(self.fallback[state], character)
                self.match[child] = self.match[child] or self.match[self.fallback[child]]
                queue.append(child)


class StopScanner:
    """Where one text stands. O(1) amortised per character."""

    __slots__ = ("_held", "_state", "_strings")

    def __init__(self, strings: StopStrings) -> None:
        self._strings = strings
        self._state = 0
        self._held = ""  # the characters that the state stands for

    def scan(self, text: str) -> tuple[str, str | None]:
        """(text that is safe to show, the stop string if it is complete). After a stop, the rest is discarded."""
        strings, state = self._strings, self._state
        if not state and strings.first_characters.isdisjoint(text):
            return text, None
        buffer = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            state = strings.step(state, character)
            if length := strings.match[state]:
                return buffer[: end - length], buffer[end - length : end]
        safe = len(buffer) - strings.depth[state]
        self._state, self._held = state, buffer[safe:]
        return buffer[:safe], None

    def flush(self) -> str:
        """What is held back, once the text has ended."""
        held, self._held, self._state = self._held, "", 0
        return held
