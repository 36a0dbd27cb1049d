"""Server-sent events, from bytes, without I/O (WHATWG HTML, section 9.2.6).

Lines are split as bytes and decoded one by one: no UTF-8 sequence contains CR or LF, so a character that is split over
two reads is whole again before it is decoded. `str.splitlines` would be wrong, it also splits at U+2028.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    data: str
    event: str = "message"
    id: str = ""


class SSEDecoder:
    """Feed it what the network gives; it returns the events that became complete. The rest at the end is dropped."""

    def __init__(self) -> None:
        self._line = bytearray()  # the start of a line whose end has not come yet
        self._ended_in_cr = False  # an LF that comes next belongs to that CR
        self._is_first_line = True
        self._data: list[str] = []
        self._event = ""
        self._id = ""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        if not chunk:
            return []
        start = 1 if self._ended_in_cr and chunk.startswith(b"\n") else 0
        self._ended_in_cr = chunk.endswith(b"\r")
        lines = _LINE_END.split(chunk[start:])
        self._line += lines[0]
        if len(lines) == 1:
            return []
        lines[0], self._line = bytes(self._line), bytearray(lines.pop())
        return [event for line in lines if (event := self._take(line)) is not None]

    def _take(self, line: bytes) -> ServerSentEvent | None:
        text = line.decode("utf-8", "replace")
        if self._is_first_line:
            self._is_first_line = False
            text = text.removeprefix(_BOM)
        if not text:
            return self._dispatch()
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        data, event = self._data, self._event
        self._data, self._event = [], ""
        if not data:
            return None
        return ServerSentEvent("\n".join(data), event or "message", self._id)
