"""One call, written as a JSON object, while it grows: its name as soon as it is there, its arguments as they come."""

from __future__ import annotations

import json
from collections.abc import Collection

ARGUMENTS_KEYS = ("arguments", "parameters")


class GrowingCall:
    """Reads up to the object's closing brace; `text` is what was read."""

    def __init__(self, name: str | None = None) -> None:
        """name: where it stood before the object, which then is the arguments."""
        self.name = name
        self.is_complete = False
        self._parts: list[str] = []
        self._is_bare = name is not None
        self._depth = 0
        self._in_string = self._is_escaped = False
        self._key: str | None = None  # whose value is being read
        self._piece: list[str] = []  # of the key or value at the object's own level
        self._is_object = False  # the value
        self._arguments: list[str] = []  # not taken yet
        self._has_arguments = False

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def feed(self, text: str) -> int:
        """How many characters were read: fewer than all where the object ends. REQUIRES: not complete."""
        for i, character in enumerate(text):
            self._read(character)
            if self.is_complete:
                self._parts.append(text[: i + 1])
                return i + 1
        self._parts.append(text)
        return len(text)

    def take_arguments(self) -> str:
        """What is new of them. REQUIRES: the name is there."""
        taken, self._arguments = "".join(self._arguments), []
        return taken

    def finish_arguments(self) -> str:
        """What is new, and a call without any has an empty object. REQUIRES: complete, once."""
        return self.take_arguments() if self._has_arguments else "{}"

    def is_call(self, names: Collection[str] | None) -> bool:
        """Whether it names a function, one of `names` if there are any."""
        return self.name is not None and (names is None or self.name in names)

    def _read(self, character: str) -> None:
        was_string = self._in_string
        if was_string:
            self._in_string = self._is_escaped or character != '"'
            self._is_escaped = character == "\\" and not self._is_escaped
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        self._take(character, is_structure=not was_string)
        self.is_complete = self._depth == 0

    def _take(self, character: str, *, is_structure: bool) -> None:
        if self._is_bare:
            self._add_argument(character)
        elif self._depth == 0 or (self._depth == 1 and is_structure and character == ","):
            self._end_value()
        elif self._depth == 1 and is_structure and character == ":" and self._key is None:
            self._key, self._piece = _string("".join(self._piece)) or "", []
        elif self._depth == 1 and is_structure and character == "{" and self._key is None:
            pass  # the object's own
        else:
            self._add(character)

    def _add(self, character: str) -> None:
        if not self._piece and character.isspace():
            return
        if self._key in ARGUMENTS_KEYS:
            self._is_object = self._is_object or (not self._piece and character == "{")
            if self._is_object and not (self._has_ended_object() and character.isspace()):
                self._add_argument(character)
        self._piece.append(character)

    def _has_ended_object(self) -> bool:
        return self._depth == 1 and bool(self._piece) and not self._in_string

    def _end_value(self) -> None:
        text = "".join(self._piece).rstrip()
        if self._key == "name":
            self.name = _string(text)
        elif self._key in ARGUMENTS_KEYS and not self._is_object:
            self._add_argument(_as_object(text))
        self._key, self._piece, self._is_object = None, [], False

    def _add_argument(self, text: str) -> None:
        self._arguments.append(text)
        self._has_arguments = True


def _string(text: str) -> str | None:
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _as_object(text: str) -> str:
    """Some write the object as a string, or nothing instead of an empty one."""
    return (_string(text) or "{}") if text.startswith('"') else "{}" if text in ("null", "") else text
