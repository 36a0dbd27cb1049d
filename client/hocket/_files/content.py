"""The bytes and lines of a file that the server keeps, read piece by piece; a broken connection is taken up again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from hocket._calls import Download
from hocket._exceptions import APIConnectionError
from hocket._flows import Body, Close, Emit, Flow, nap, open_body, read

OnDownload = Callable[[int, int | None], None]  # bytes so far, and of all; None if that is not known
_MAX_BREAKS = 5  # in a row, without a byte between them
_BREAK_SECONDS = 1.0


def file_path(file_id: str) -> str:
    return f"/v1/files/{quote(file_id, safe='')}"


class Content:
    """The bytes of a file from `offset` on."""

    def __init__(self, file_id: str, offset: int = 0) -> None:
        self.offset = offset  # of the next byte
        self.num_bytes: int | None = None  # of the whole file, if the server says so
        self._file_id = file_id
        self._body: Body | None = None
        self._num_skipped = 0  # bytes that a server without ranges will send once more
        self._num_breaks = 0

    def piece(self) -> Flow[bytes | None]:
        """None at the end. Raises HocketError."""
        while True:
            try:
                body = self._body or (yield from self._open())
                piece = yield from read(body)
            except APIConnectionError:
                yield from self._recover()
                continue
            if piece is None:
                return None
            fresh = piece[self._num_skipped :]
            self._num_skipped -= len(piece) - len(fresh)
            if fresh:
                self.offset += len(fresh)
                self._num_breaks = 0
                return fresh

    def close(self) -> Flow[None]:
        if self._body is not None:
            yield Close(self._body)
            self._body = None

    def _open(self) -> Flow[Body]:
        self._body = body = yield from open_body(Download(f"{file_path(self._file_id)}/content", self.offset))
        start = self.offset if body.response.status_code == 206 else 0
        self._num_skipped = self.offset - start
        length = body.response.headers.get("content-length", "")
        self.num_bytes = start + int(length) if length.isdigit() else None
        return body

    def _recover(self) -> Flow[None]:
        """REQUIRES: called while the break is being handled; raises it again after too many."""
        self._num_breaks += 1
        if self._num_breaks > _MAX_BREAKS:
            raise
        yield from self.close()
        yield from nap(_BREAK_SECONDS * self._num_breaks)


class Lines:
    """The lines of a file without their ends; nothing behind the last newline is no line."""

    def __init__(self, file_id: str) -> None:
        self._content = Content(file_id)
        self._ready: deque[bytes] = deque()
        self._rest: list[bytes] = []
        self._is_at_end = False

    def line(self) -> Flow[bytes | None]:
        """None at the end. Raises HocketError."""
        while not self._ready and not self._is_at_end:
            piece = yield from self._content.piece()
            if piece is None:
                self._is_at_end = True
                yield from self._content.close()
                last = b"".join(self._rest)
                return last or None
            first, *more = piece.split(b"\n")
            self._rest.append(first)
            for line in more:
                self._ready.append(b"".join(self._rest))
                self._rest = [line]
        return self._ready.popleft() if self._ready else None


def emit_lines(file_id: str) -> Flow[None]:
    lines = Lines(file_id)
    while (line := (yield from lines.line())) is not None:
        yield Emit(line.decode())


def collect(file_id: str) -> Flow[bytes]:
    content, pieces = Content(file_id), []
    while (piece := (yield from content.piece())) is not None:
        pieces.append(piece)
    yield from content.close()
    return b"".join(pieces)


def save(file_id: str, path: Path, on_progress: OnDownload | None) -> Flow[Path]:
    """Into a file beside `path` that takes its place when it is whole; what an earlier attempt left there is kept.

    A file's content never changes under its id. Raises HocketError, OSError.
    """
    part = path.with_name(f"{path.name}.{file_id}.part")
    with part.open("ab") as file:
        content = Content(file_id, file.tell())
        while (piece := (yield from content.piece())) is not None:
            file.write(piece)
            if on_progress is not None:
                on_progress(content.offset, content.num_bytes)
        yield from content.close()
    part.replace(path)
    return path
