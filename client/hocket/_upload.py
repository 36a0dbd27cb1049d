"""A file on its way to the server: multipart, a piece at a time, so that its size does not matter."""

from __future__ import annotations

import asyncio
import io
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

PIECE_BYTES = 256 * 1024
FileInput = str | os.PathLike[str] | bytes | bytearray | BinaryIO
# Bytes sent so far, and of all; None if that is not known
OnUpload = Callable[[int, int | None], None]


class UploadBody:
    """Can be sent again, from where the file stood at first, unless it is a stream that cannot go back.

    A path is opened anew for each attempt. Raises OSError as files do.
    """

    def __init__(
        self, fields: Mapping[str, str], file: FileInput, filename: str | None, on_progress: OnUpload | None
    ) -> None:
        boundary = secrets.token_hex(16)
        source = Path(file) if isinstance(file, str | os.PathLike) else file
        self._file: Path | BinaryIO = io.BytesIO(source) if isinstance(source, bytes | bytearray) else source
        self._start = self._position()
        self._on_progress = on_progress
        name = filename or self._filename()
        parts = [_part(boundary, f'name="{key}"', "") + value for key, value in fields.items()]
        content = f'name="file"; filename="{_quoted(name)}"'
        parts.append(_part(boundary, content, "\r\nContent-Type: application/octet-stream"))
        self._head = "\r\n".join(parts).encode()
        self._tail = f"\r\n--{boundary}--\r\n".encode()
        self._file_bytes = self._size()
        self.headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
        if self._file_bytes is not None:
            self.headers["content-length"] = str(len(self._head) + self._file_bytes + len(self._tail))

    @property
    def is_repeatable(self) -> bool:
        return isinstance(self._file, Path) or self._start is not None

    def pieces(self) -> Iterator[bytes]:
        yield self._head
        with self._opened() as file:
            sent = 0
            while piece := file.read(PIECE_BYTES):
                yield piece
                sent += len(piece)
                self._report(sent)
        yield self._tail

    async def apieces(self) -> AsyncIterator[bytes]:
        yield self._head
        with self._opened() as file:
            sent = 0
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield piece
                sent += len(piece)
                self._report(sent)
        yield self._tail

    def _report(self, sent: int) -> None:
        if self._on_progress is not None:
            self._on_progress(sent, self._file_bytes)

    def _opened(self) -> AbstractContextManager[BinaryIO]:
        if isinstance(self._file, Path):
            return self._file.open("rb")
        if self._start is not None:
            self._file.seek(self._start)
        return nullcontext(self._file)

    def _position(self) -> int | None:
        """Where a file object stands; None if it cannot go back, or is none."""
        if isinstance(self._file, Path) or not self._file.seekable():
            return None
        return self._file.tell()

    def _size(self) -> int | None:
        """Of what will be sent, in bytes."""
        if isinstance(self._file, Path):
            return self._file.stat().st_size
        if self._start is None:
            return None
        end = self._file.seek(0, io.SEEK_END)
        self._file.seek(self._start)
        return end - self._start

    def _filename(self) -> str:
        name = self._file.name if isinstance(self._file, Path) else getattr(self._file, "name", None)
        return Path(name).name if isinstance(name, str) else "rows.jsonl"


def _part(boundary: str, disposition: str, more: str) -> str:
    return f"--{boundary}\r\nContent-Disposition: form-data; {disposition}{more}\r\n\r\n"


def _quoted(name: str) -> str:
    """As browsers write a file's name."""
    return name.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")
