"""The bytes of a form, with what stands between its parts kept short.

aiohttp reads line by line until a form's first part, and through the head of each part, however many lines there are.
"""

from __future__ import annotations

from aiohttp import StreamReader

_MAX_HEAD_BYTES = 16 * 2**10
_MIN_LINE_BYTES = 64  # a line costs about as much as so many bytes


class FormStream:
    """What MultipartReader needs of a StreamReader."""

    def __init__(self, content: StreamReader) -> None:
        self._content = content
        self._num_left = _MAX_HEAD_BYTES
        self.read = content.read
        self.unread_data = content.unread_data
        self.at_eof = content.at_eof

    def begin_part(self) -> None:
        self._num_left = _MAX_HEAD_BYTES

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        """Raises ValueError if the lines since the part began are too many or too long."""
        line = await self._content.readline(max_line_length=max_line_length or max(1, self._num_left))
        self._num_left -= max(len(line), _MIN_LINE_BYTES)
        if self._num_left < 0:
            raise ValueError(f"more than {_MAX_HEAD_BYTES} bytes, or too many lines, before the content of a part")
        return line
