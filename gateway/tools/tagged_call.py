"""One call that is written with a tag for each parameter, while it grows; its arguments come as JSON.

Strings come as they are written, other values when they are whole: only then it is clear what they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from gateway.base.marks import Marks
from gateway.tools.parameter_kinds import ANY, NO_STRING, STRING, Kinds, as_json, kinds_of
from gateway.tools.tool_format import ToolFormat

_NAME = re.compile(r"[a-zA-Z0-9_.\-]+")
_NO_NAME = r"[^a-zA-Z0-9_.\-\s\"]"  # a character that no name has
_SAYS_KIND = re.compile(r'"\s*string="(true|false)')
Schemas = Mapping[str, Mapping[str, Any]]  # of functions' parameters, by name


class TaggedCall:
    """Reads from behind the tag before the name up to the call's end; `text` is what was read."""

    def __init__(self, tool_format: ToolFormat, schemas: Schemas) -> None:
        """REQUIRES: the format has tags."""
        assert tool_format.tags is not None
        self.name: str | None = None
        self.is_complete = False  # without a name: it is no call
        self.has_closed = False  # the format's closing was its end
        self._tags, self._schemas = tool_format.tags, schemas
        self._closing = tool_format.closing
        ends = tuple(mark for mark in (self._tags.call_end, self._closing) if mark)
        self._between = Marks.of(self._tags.key, *ends)
        name_ends = (self._tags.name_end,) if self._tags.name_end else self._between.marks
        self._name_end = Marks.of(*name_ends, other=_NO_NAME)
        self._key_end, self._value_end = Marks.of(self._tags.key_end), Marks.of(self._tags.value_end)
        self._parts: list[str] = []
        self._rest, self._at = "", 0  # what is not read yet begins there
        self._step: Callable[[], bool] = self._read_name
        self._piece: list[str] = []  # of a name, a key or a value that is not told yet
        self._keys: set[str] = set()
        self._kinds: Kinds | None = None  # of the value that is read; None: it is dropped
        self._is_begun = False  # the value: more than its padding was read
        self._tail = ""  # of a string: perhaps its padding
        self._arguments: list[str] = []  # not taken yet

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def feed(self, text: str) -> int:
        """How many characters were read: fewer than all where the call ends. REQUIRES: not complete."""
        self._rest, self._at = self._rest[self._at :] + text, 0
        while not self.is_complete and self._step():
            pass
        num_read = len(text) - (len(self._rest) - self._at if self.is_complete else 0)
        self._parts.append(text[:num_read])
        return num_read

    def take_arguments(self) -> str:
        """What is new of them. REQUIRES: the name is there."""
        taken, self._arguments = "".join(self._arguments), []
        return taken

    def finish_arguments(self) -> str:
        """What is new, and their end. REQUIRES: complete, once."""
        return self.take_arguments() + ("}" if self._keys else "{}")

    def is_call(self, names: Collection[str] | None) -> bool:
        return self.name is not None and (names is None or self.name in names)

    def _until(self, marks: Marks) -> str | None:
        """The mark that was found, and read; what stood before it is in `_piece`."""
        before, mark, self._at = marks.find(self._rest, self._at)
        self._piece.append(before)
        return mark

    def _taken_piece(self) -> str:
        taken, self._piece = "".join(self._piece), []
        return taken

    def _read_name(self) -> bool:
        mark = self._until(self._name_end)
        if mark is None:
            return False
        name = self._taken_piece().strip().strip('"')
        if mark not in self._name_end.marks or not _NAME.fullmatch(name):
            self.is_complete = True
            return False
        self.name = name
        if mark == self._tags.name_end:
            self._step = self._read_between
            return True
        return self._enter(mark)

    def _read_between(self) -> bool:
        """What is no tag is dropped."""
        mark = self._until(self._between)
        self._piece = []
        return mark is not None and self._enter(mark)

    def _enter(self, mark: str) -> bool:
        self._step = self._read_key
        self.is_complete = mark != self._tags.key
        self.has_closed = mark == self._closing
        return not self.is_complete

    def _read_key(self) -> bool:
        if self._until(self._key_end) is None:
            return False
        key = self._taken_piece()
        said = _SAYS_KIND.search(key) if self._tags.says_kind else None
        self._begin_value(key[: said.start()] if said else key.strip().strip('"'), said and said[1])
        return True

    def _begin_value(self, key: str, is_string: str | None) -> None:
        self._step = self._skip_to_value if self._tags.value else self._read_value
        if key in self._keys:
            self._kinds = None
            return
        schema = self._schemas.get(self.name or "") or {}
        properties = schema.get("properties")
        known = kinds_of(properties.get(key), schema) if isinstance(properties, Mapping) else ANY
        self._kinds = known if is_string is None else STRING if is_string == "true" else NO_STRING
        self._arguments.append(f"{', ' if self._keys else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        self._arguments.append('"' if self._kinds == STRING else "")
        self._keys.add(key)
        self._is_begun, self._tail = False, ""

    def _skip_to_value(self) -> bool:
        if self._until(Marks.of(self._tags.value)) is None:
            return False
        self._piece, self._step = [], self._read_value
        return True

    def _read_value(self) -> bool:
        mark = self._until(self._value_end)
        if self._kinds == STRING:
            self._say_string(self._taken_piece())
        if mark is None:
            return False
        self._end_value()
        self._step = self._read_between
        return True

    def _say_string(self, text: str) -> None:
        padding = self._tags.padding
        if text and not self._is_begun:
            text, self._is_begun = text.removeprefix(padding), True
        text = self._tail + text
        said = text.removesuffix(padding)
        self._tail = text[len(said) :]
        self._arguments.append(json.dumps(said, ensure_ascii=False)[1:-1])

    def _end_value(self) -> None:
        if self._kinds == STRING:
            self._arguments.append('"')
        elif self._kinds is not None:
            text = self._taken_piece().removeprefix(self._tags.padding).removesuffix(self._tags.padding)
            self._arguments.append(as_json(text, self._kinds))
        self._piece = []
