"""Text -> what is thinking and what is the answer, piece by piece; whole texts are one piece.

What cannot be told yet is held back: the beginning of a mark, and whitespace around one, which belongs to neither side.
However the text is cut, the pieces add up to the same.
"""

from __future__ import annotations

import enum

from gateway.base.held_text import MAX_SPACE, num_held, without_space
from gateway.reasoning.reasoning_format import ReasoningFormat


class Start(enum.Enum):
    """Where an answer's text begins."""

    OPEN = enum.auto()  # in thinking: the prompt opened it
    MAY_OPEN = enum.auto()  # the answer may open it
    CLOSED = enum.auto()  # in the answer proper


class ThinkingReader:
    def __init__(self, reasoning_format: ReasoningFormat, start: Start) -> None:
        self._format = reasoning_format
        self._start = start
        self._rest = ""  # not told yet
        self._is_at_opening = start is not Start.CLOSED  # nothing but whitespace has come yet
        self._is_before_thought = True  # nothing but whitespace has come since the opening
        self._is_after_closing = False  # nothing but whitespace has come since the closing
        self.is_thinking = start is Start.OPEN
        self.has_thought = self.is_thinking

    @property
    def has_ended(self) -> bool:
        """All that comes is the answer."""
        return not self.is_thinking and not self._is_at_opening

    def feed(self, text: str, *, is_end: bool = False) -> tuple[str, str]:
        """(thinking, answer) that is told by now; at the end, all."""
        self._rest += text
        if self._is_at_opening and not self._pass_opening(is_end):
            return "", ""
        thinking = self._take_thinking(is_end) if self.is_thinking else ""
        return thinking, "" if self.is_thinking else self._take_answer()

    def _pass_opening(self, is_end: bool) -> bool:
        """False where more text is needed."""
        begun, opening = self._rest.lstrip(), self._format.opening
        if len(self._rest) - len(begun) > MAX_SPACE:
            self._is_at_opening = False
            return True
        if not is_end and len(begun) < len(opening) and opening.startswith(begun):
            return False
        self._is_at_opening = False
        if begun.startswith(opening):
            self.is_thinking = self.has_thought = True
            self._rest = begun.removeprefix(opening)
        return True

    def _take_thinking(self, is_end: bool) -> str:
        if self._is_before_thought:
            self._rest = self._rest.lstrip()
        before, closing, after = self._rest.partition(self._format.closing)
        if closing:
            self._rest, self.is_thinking, self._is_after_closing = after, False, True
            return without_space(before)
        end = len(without_space(before)) if is_end else len(before) - num_held(before, self._format.closing)
        self._rest = before[end:]
        self._is_before_thought = self._is_before_thought and not end
        return before[:end]

    def _take_answer(self) -> str:
        if self._is_after_closing:
            self._rest = self._rest.lstrip()
            self._is_after_closing = not self._rest
        answer, self._rest = self._rest, ""
        return answer
