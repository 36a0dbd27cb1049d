"""The data directory of one gateway.

    lock      held while a gateway runs
    store-id  which database belongs to it
    store.db  SQLite, unless --database-url names another database
    files/    one per file record, by id: there whole or not at all
    parts/    files being written; whatever a crash leaves here is deleted at the next start

Only its owner may read it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gateway.offline.database import StoreOpenError
from gateway.protocol.errors import StorageFullError

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DirectoryInUseError(StoreOpenError):
    """Another gateway runs on it."""


class DataDirectory:
    """Raises StoreOpenError, DirectoryInUseError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = path / "files"
        self._parts = path / "parts"
        try:
            for folder in (path, self.files, self._parts):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreOpenError(f"the data directory {path} cannot be used: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise DirectoryInUseError(
                f"another gateway uses the data directory {path}: give each one of its own with --data-dir"
            ) from None

    def close(self) -> None:
        os.close(self._lock)

    @property
    def store_id(self) -> str | None:
        with suppress(FileNotFoundError):
            return (self.path / "store-id").read_text().strip()
        return None

    @store_id.setter
    def store_id(self, value: str) -> None:
        with self.part() as (part, path):
            part.write(value.encode())
            self.publish(part, path, self.path / "store-id")

    @contextmanager
    def part(self) -> Iterator[tuple[BinaryIO, Path]]:
        """A file to write, gone at the end unless it was published. Raises StorageFullError."""
        path = self._parts / secrets.token_hex(12)
        with full_disk_is_an_api_error():
            part = self.open_part(path)
            try:
                yield part, path
            finally:
                with suppress(OSError):
                    part.close()
                path.unlink(missing_ok=True)

    def new_part_path(self) -> Path:
        return self._parts / secrets.token_hex(12)

    def open_part(self, path: Path) -> BinaryIO:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")

    def publish(self, part: BinaryIO, path: Path, target: Path) -> None:
        """After this returns the file is there, whole, whatever happens."""
        part.flush()
        os.fsync(part.fileno())
        path.rename(target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def file(self, file_id: str) -> Path:
        return self.files / file_id

    def remove(self, file_id: str) -> None:
        self.file(file_id).unlink(missing_ok=True)

    def clean(self, known: Collection[str]) -> None:
        """Deletes what a crash left: parts, and files without a record."""
        for path in self._parts.iterdir():
            path.unlink(missing_ok=True)
        for path in self.files.iterdir():
            if path.name not in known:
                path.unlink(missing_ok=True)


@contextmanager
def full_disk_is_an_api_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFullError("The server's disk is full: nothing was saved. Try again later.") from error
        raise
