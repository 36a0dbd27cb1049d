"""A file on its way in: pieces go to the disk as they come, a bounded number of bytes waits in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

from gateway.offline.directory import DataDirectory, full_disk_is_an_api_error
from gateway.offline.threads import StoreThreads

T = TypeVar("T")

_PIECE_BYTES = 2**20


class Upload:
    """An async context; at its end the part is gone unless it was published. Raises StorageFullError."""

    def __init__(self, directory: DataDirectory, threads: StoreThreads) -> None:
        self._directory = directory
        self._threads = threads
        self._path = directory.new_part_path()
        self._part: BinaryIO | None = None
        self._waiting = bytearray()
        self._is_publishing = False
        self.num_bytes = 0

    async def write(self, piece: bytes) -> None:
        self.num_bytes += len(piece)
        self._waiting += piece
        if len(self._waiting) >= _PIECE_BYTES:
            await self._in_thread(self._flush)

    def publish(self, target: Path) -> Awaitable[None]:
        """Afterwards the file is there, whole, whatever happens. The context may end meanwhile."""
        self._is_publishing = True
        return self._in_thread(self._publish, target)

    async def __aenter__(self) -> Self:
        self._part = await self._in_thread(self._directory.open_part, self._path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_publishing:
            await self._in_thread(self._discard)

    def _flush(self) -> None:
        assert self._part is not None
        self._part.write(self._waiting)
        self._waiting = bytearray()

    def _publish(self, target: Path) -> None:
        assert self._part is not None
        try:
            self._flush()
            self._directory.publish(self._part, self._path, target)
        finally:
            self._discard()

    def _discard(self) -> None:
        with suppress(OSError):
            if self._part is not None:
                self._part.close()
        self._path.unlink(missing_ok=True)

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        def run() -> T:
            with full_disk_is_an_api_error():
                return work(*arguments)

        return await self._threads.beside(run)
