"""A file on its way in: pieces go to the disk as they come, a bounded number of bytes waits in memory.

What reaches the disk is taken from the tenant's quota before: so many uploads at once have no more than it either.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

from gateway.offline.database.threads import StoreThreads
from gateway.offline.store.accounts import FILE_BYTES, Accounts
from gateway.offline.store.directory import DataDirectory, full_disk_is_an_api_error
from gateway.protocol.errors import QuotaError

T = TypeVar("T")

_PIECE_BYTES = 2**18  # to the disk at once: somebody's token waits for a core that writes
_AHEAD_BYTES = 2**22


class Upload:
    """An async context; at its end the part is gone unless it was published. Raises StorageFullError, QuotaError."""

    def __init__(self, directory: DataDirectory, threads: StoreThreads, tenant: str, accounts: Accounts) -> None:
        self._directory = directory
        self._threads = threads
        self._tenant = tenant
        self._accounts = accounts
        self._path = directory.new_part_path()
        self._part: BinaryIO | None = None
        self._waiting = bytearray()
        self._is_publishing = False
        self._num_taken = 0  # bytes of the quota
        self.num_bytes = 0

    async def write(self, piece: bytes) -> None:
        self.num_bytes += len(piece)
        self._waiting += piece
        if len(self._waiting) >= _PIECE_BYTES:
            await self._take_ahead()
            await self._in_thread(self._flush)

    async def take_all(self) -> None:
        """For what has been written so far the tenant has room. Raises QuotaError."""
        if (missing := self._missing()) > 0:
            await self._take(missing)

    async def _take_ahead(self) -> None:
        """As `take_all`, and for as much again, so that a look at the quota is not needed for every piece."""
        if (missing := self._missing()) <= 0:
            return
        try:
            await self._take(missing + min(self.num_bytes, _AHEAD_BYTES))
        except QuotaError:
            await self._take(missing)

    def _missing(self) -> int:
        return self.num_bytes + FILE_BYTES - self._num_taken

    async def _take(self, num_bytes: int) -> None:
        self._accounts.begin_upload(self._tenant, num_bytes)
        try:
            await self._threads.write(lambda connection: self._accounts.check(connection, self._tenant, 0))
        except BaseException:
            self._accounts.end_upload(self._tenant, num_bytes)
            raise
        self._num_taken += num_bytes

    async def publish(self, target: Path) -> None:
        """Afterwards the file is there, whole, whatever happens. The context may end meanwhile; whoever published calls
        `release` when the file counts by itself."""
        self._is_publishing = True
        try:
            await self._in_thread(self._publish, target)
        except Exception:
            self._discard()  # which has been done already, but where there was no thread for it
            raise

    def release(self) -> None:
        """What it has taken from the quota. Idempotent."""
        taken, self._num_taken = self._num_taken, 0
        self._accounts.end_upload(self._tenant, taken)

    async def __aenter__(self) -> Self:
        try:
            await self.take_all()
            self._part = await self._in_thread(self._directory.open_part, self._path)
        except BaseException:
            self.release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_publishing:
            try:
                await self._in_thread(self._discard)
            except Exception:
                self._discard()  # here: without a thread for it, the part would stay until the next start
                raise
            finally:
                self.release()

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

        return await self._threads.in_background(run)
