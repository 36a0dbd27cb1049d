"""The data directory of one gateway, or of several that share their batches.

    lock      held while a gateway runs; several share it
    store-id  which database belongs to it
    store.db  SQLite, unless --database-url names another database
    files/    one per file record, by id: there whole or not at all
    parts/    files being written; what a crash leaves here is deleted at the next start

Only its owner may read it. What others keep there is never touched: directory_claim.py.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gateway.offline.database.database import StoreOpenError
from gateway.offline.store.directory_claim import (
    DATABASE,
    FILES,
    LOCK,
    PARTS,
    STORE_ID,
    check_claim,
    check_database_file,
    is_file_name,
    is_part_name,
    tighten,
)
from gateway.protocol.errors import ApiError, StorageFullError

_LOCK_SECONDS = 5.0  # that a gateway may clean up before others share the directory with it
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DirectoryInUseError(StoreOpenError):
    """Another gateway runs on it."""


class DataDirectory:
    """Raises StoreOpenError, DirectoryInUseError."""

    def __init__(self, path: Path, *, is_shared: bool = False) -> None:
        """is_shared: `admit_others()` follows when it is clean."""
        self.path = path
        self.files = path / FILES
        self._parts = path / PARTS
        try:
            check_claim(path)
            for folder in (path, self.files, self._parts):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                tighten(folder)
            self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreOpenError(f"the data directory {path} cannot be used: {error.strerror}") from None
        self.is_alone = self._try_lock(fcntl.LOCK_EX)  # no other gateway uses it yet
        deadline = time.monotonic() + (_LOCK_SECONDS if is_shared else 0.0)
        while not self.is_alone and not (is_shared and self._try_lock(fcntl.LOCK_SH)):
            if time.monotonic() >= deadline:
                os.close(self._lock)
                raise DirectoryInUseError(
                    f"another gateway uses the data directory {path}: give each one of its own with --data-dir"
                )
            time.sleep(_LOCK_SECONDS / 50)

    def _try_lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def admit_others(self) -> None:
        """From here on other gateways may share it."""
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def close(self) -> None:
        os.close(self._lock)

    @property
    def store_id(self) -> str | None:
        with suppress(FileNotFoundError):
            return (self.path / STORE_ID).read_text(errors="replace").strip()
        return None

    @store_id.setter
    def store_id(self, value: str) -> None:
        with self.part() as (part, path):
            part.write(value.encode())
            self.publish(part, path, self.path / STORE_ID)

    def own_database(self) -> str:
        """The URL of the SQLite file in it. Raises StoreOpenError if it should be there and is not."""
        check_database_file(self.path)
        return f"sqlite:///{self.path / DATABASE}"

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
        """Deletes what a crash left: parts, and files without a record. Names that are not the store's stay.

        REQUIRES: `known` comes from the database that belongs to the directory.
        """
        left = [path for path in self._parts.iterdir() if is_part_name(path.name)]
        left += [path for path in self.files.iterdir() if is_file_name(path.name) and path.name not in known]
        for path in left:
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)


@contextmanager
def one_line_of_trouble(path: Path) -> Iterator[None]:
    """Raises StoreOpenError for whatever else may be wrong with a directory and its database."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise StoreOpenError(f"the data directory {path} cannot be used: {where}: {error.strerror}") from None
    except ApiError as error:
        raise StoreOpenError(f"the data directory {path} cannot be used: {error.message}") from None


@contextmanager
def full_disk_is_an_api_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFullError("The server's disk is full: nothing was saved. Try again later.") from error
        raise
