"""Text -> what is content and what are calls, piece by piece; whole texts are one piece.

What cannot be told yet is held back: the beginning of an opening, whitespace that may stand before one, a call whose
name is not there. What turns out to be no call is content after all.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.base.held_text import num_held, without_space
from gateway.tools.growing_call import GrowingCall
from gateway.tools.tagged_call import TaggedCall
from gateway.tools.tool_format import PYTHON_TAG, ToolFormat

_ALPHABET = string.ascii_letters + string.digits
_SPACE = " \t\r\n"
_BETWEEN = _SPACE + ",;[]"
_FENCED = _SPACE + "`"  # arguments stand in a block of code
MIN_NAMED_LENGTH = 24  # of ids that say what they are of


@dataclass(slots=True)
class CallPiece:
    """What is new of one call. name and id: in its first piece."""

    index: int
    arguments: str = ""
    name: str | None = None
    id: str | None = None


@dataclass(slots=True)
class Pieces:
    content: str = ""
    reasoning: str = ""  # of models that think: reasoning/
    calls: list[CallPiece] = field(default_factory=list)


class CallReader:
    def __init__(
        self, tool_format: ToolFormat, functions: Mapping[str, Mapping[str, Any] | None], max_calls: int | None = None
    ) -> None:
        """functions: their parameters' schemas, by name; max_calls: what comes after so many is dropped."""
        self._format = tool_format
        self._functions = functions
        self._names: Collection[str] | None = None  # where an opening says that it is a call, it may name any
        if tool_format.begins_text:
            self._names = functions.keys()
        self._max_calls = max_calls
        marks = (tool_format.opening, tool_format.closing, *tool_format.inner_marks, PYTHON_TAG)
        self._marks = [mark for mark in marks if mark]
        self._rest = ""  # not read yet
        self._unsaid = ""  # read, and content if no call follows
        self._space = ""  # read after a call, and content if text follows
        self._is_in_calls = tool_format.begins_text
        self._call: GrowingCall | TaggedCall | None = None
        self._index: int | None = None  # of the call that grows; None: nobody was told of it
        self.num_calls = 0

    def feed(self, text: str, *, is_end: bool = False) -> Pieces:
        """What is told by now; at the end, all."""
        pieces = Pieces()
        self._rest += text
        while self._rest and self._step(pieces, is_end):
            pass
        if is_end and (self._call is None or self._index is None):
            self._give_up(pieces)
            if not self.num_calls:
                self._say(pieces, self._rest)
                self._rest = ""
        return pieces

    def _step(self, pieces: Pieces, is_end: bool) -> bool:
        """False where more text is needed."""
        if self._call is not None:
            self._read_call(pieces, self._call)
            return True
        return self._read_between(pieces) if self._is_in_calls else self._read_content(pieces, is_end)

    def _read_content(self, pieces: Pieces, is_end: bool) -> bool:
        opening = self._format.opening
        before, found, after = self._rest.partition(opening) if opening else (self._rest, "", "")
        if found:
            self._say(pieces, without_space(before))
            self._unsaid, self._rest, self._is_in_calls = opening, after, True
            return True
        end = len(self._rest) - (0 if is_end or not opening else num_held(self._rest, opening))
        self._say(pieces, self._rest[:end])
        self._rest = self._rest[end:]
        return False

    def _read_between(self, pieces: Pieces) -> bool:
        """Before, between and after calls."""
        rest = self._skip_between()
        if not rest or any(mark.startswith(rest) and mark != rest for mark in self._marks):
            return False
        for mark in self._marks:
            if rest.startswith(mark):
                self._unsaid, self._rest = self._unsaid + mark, rest[len(mark) :]
                if mark == self._format.closing:
                    self._give_up(pieces)
                return True
        return self._begin_tagged(pieces, rest) if self._format.tags is not None else self._begin_object(pieces, rest)

    def _begin_object(self, pieces: Pieces, rest: str) -> bool:
        """A call as an object, perhaps with its name before it."""
        head = self._format.head
        named = None if head is None else head.whole.match(rest)
        if named is not None:
            self._unsaid, self._rest = self._unsaid + named[0], rest[named.end() :]
        elif head is not None and head.begun.fullmatch(rest):
            return False
        elif not rest.startswith("{"):
            self._give_up(pieces)
            return True
        self._call, self._index = GrowingCall(named and named[1]), None
        return True

    def _begin_tagged(self, pieces: Pieces, rest: str) -> bool:
        assert self._format.tags is not None
        opening = self._format.tags.call
        if opening.startswith(rest) and opening != rest:
            return False
        if not rest.startswith(opening):
            self._give_up(pieces)
            return True
        self._unsaid, self._rest = self._unsaid + opening, rest[len(opening) :]
        schemas = {name: schema or {} for name, schema in self._functions.items()}
        self._call, self._index = TaggedCall(self._format, schemas), None
        return True

    def _skip_between(self) -> str:
        between, start = _SPACE, 0
        if self._format.head is not None and not self._format.is_list:
            between = _FENCED
        elif self._format.tags is None and (self.num_calls or self._format.is_list):
            between = _BETWEEN
        while start < len(self._rest) and self._rest[start] in between:
            if any(mark.startswith(self._rest[start : start + len(mark)]) for mark in self._marks):
                break
            start += 1
        self._unsaid, self._rest = self._unsaid + self._rest[:start], self._rest[start:]
        return self._rest

    def _read_call(self, pieces: Pieces, call: GrowingCall | TaggedCall) -> None:
        self._rest = self._rest[call.feed(self._rest) :]
        if call.is_call(self._names):
            self._tell(pieces, call)
        if call.is_complete and self._index is None and not self._is_full:
            self._give_up(pieces)
        elif call.is_complete:
            self._call, self._unsaid = None, ""
            self._is_in_calls = not (isinstance(call, TaggedCall) and call.has_closed)

    @property
    def _is_full(self) -> bool:
        return self.num_calls == self._max_calls

    def _tell(self, pieces: Pieces, call: GrowingCall | TaggedCall) -> None:
        if self._index is not None:
            piece = CallPiece(self._index)
        elif self._is_full:
            return
        else:
            self._index = self.num_calls
            self.num_calls += 1
            self._space = ""
            piece = CallPiece(self._index, name=call.name, id=self._new_id())
        piece.arguments = call.finish_arguments() if call.is_complete else call.take_arguments()
        if piece.arguments or piece.name is not None:
            pieces.calls.append(piece)

    def _give_up(self, pieces: Pieces) -> None:
        """What was read is no call: content. What follows is read as such."""
        text = self._unsaid if not self.num_calls else ""
        self._say(pieces, text + (self._call.text if self._call is not None else ""))
        self._call, self._unsaid, self._is_in_calls = None, "", False

    def _say(self, pieces: Pieces, text: str) -> None:
        """Once there are calls, whitespace is nothing unless text follows."""
        if self.num_calls:
            text = self._space + text
            said = without_space(text)
            self._space, text = text[len(said) :], said
        pieces.content += text

    def _new_id(self) -> str:
        length = self._format.id_length
        letters = "".join(secrets.choice(_ALPHABET) for _ in range(length))
        return letters if length < MIN_NAMED_LENGTH else f"call_{letters}"
