"""Sessions on disk: the tokens of each one's last request, in a file of its own.

file   head: magic, fingerprint, number, digest; then a _Body. The number grows from file to file, so that it says which
       is newer; the digest covers all else and the file's name

A file is written aside and put in the place of the older one, so that whoever is killed at any moment leaves the one or
the other. That is all the recovery there is: a damaged file costs its session and nothing else, where a database would
bring a log and a recovery of its own for the sake of one look-up by key. Nothing is synced: what a crash of the machine
takes away is found by its digest.

The folder is bounded in files and bytes. When it is full, the tenant who takes most loses its oldest session, as in the
core's table (cpp/core/sessions/session_table.h); files that nobody here can use (damaged, or of another fingerprint) go
before. Other files are somebody else's and stay. Files are their owner's alone: token ids are as private as prompts.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

Int32 = npt.NDArray[np.int32]

# One part of disk_cache_bytes is for sessions: 4 bytes per token of one, whose blocks take hundreds of it.
PARTS_PER_BOOK = 32
MAX_NUM_SESSIONS = 4096  # as many as the core remembers (cpp/core/base/config.h)
PAGE_BYTES = 4096  # a file takes whole ones
_HEAD = struct.Struct("<16s16sQ16s")  # magic, fingerprint, number, digest
_MAGIC = b"hocket session1\n"
_FILE_NAME = re.compile(r"[0-9a-f]{32}")
_NEW = ".new"  # at the end of the name of a file that is being written


class SessionName(NamedTuple):
    tenant: str
    salt: str
    session_id: str


class _Body(msgspec.Struct, array_like=True, frozen=True):
    tenant: str
    salt: str
    session_id: str
    token_ids: bytes  # int32, little-endian


@dataclass(frozen=True, slots=True)
class _File:
    tenant: str | None  # None: nobody can use it
    num_bytes: int


@dataclass(slots=True)
class _Share:
    """What a tenant takes."""

    num_files: int = 0
    num_bytes: int = 0


class SessionFiles:
    """Not thread-safe, but for has()."""

    def __init__(self, folder: Path, fingerprint: str, max_num_sessions: int, max_bytes: int) -> None:
        """fingerprint: of what token ids mean, and the cache that is found by them. Raises OSError."""
        self._folder = folder
        self._fingerprint = hashlib.blake2b(fingerprint.encode(), digest_size=16).digest()
        self._max_num_sessions, self._max_bytes = max_num_sessions, max_bytes
        self._files: dict[str, _File] = {}  # by name, oldest first
        self._shares: defaultdict[str | None, _Share] = defaultdict(_Share)
        self._num_bytes = 0
        self._found: list[tuple[int, str]] = []  # number and name of what recall() will look at
        self._last_number = 0
        folder.mkdir(mode=0o700, exist_ok=True)
        self._scan()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def recall(self) -> Iterator[tuple[SessionName, Int32]]:
        """All sessions that are whole, oldest first. Call it once, before anything is written."""
        found, self._found = sorted(self._found), []
        num_damaged = 0
        for _, file_name in found:
            body = self._read(file_name)
            if body is None:
                num_damaged += 1
                continue
            num_bytes = self._files[file_name].num_bytes
            self._take_out(file_name)
            self._put(file_name, _File(body.tenant, num_bytes))
            yield SessionName(body.tenant, body.salt, body.session_id), np.frombuffer(body.token_ids, "<i4")
        if num_damaged > 0:
            logger.warning("%d sessions in %s are damaged and are forgotten", num_damaged, self._folder)
        try:
            self._make_room(0, 0)  # the bounds may be smaller than in the life before
        except OSError as error:
            logger.warning("a session in %s cannot be removed: %s", self._folder, error.strerror)

    def write(self, name: SessionName, token_ids: Int32) -> bool:
        """In the place of what was there. False if it takes more than all may. Raises OSError."""
        file_name = self._file_name(name)
        content = self._encode(file_name, _Body(*name, token_ids.astype("<i4", copy=False).tobytes()))
        num_bytes = _num_page_bytes(len(content))
        if num_bytes > self._max_bytes:
            return False
        self._make_room(0 if file_name in self._files else 1, num_bytes, name.tenant)
        self._replace(file_name, content)
        self._take_out(file_name)
        self._put(file_name, _File(name.tenant, num_bytes))
        return True

    def has(self, name: SessionName) -> bool:
        """May be asked by another thread."""
        return self._file_name(name) in self._files

    def remove(self, name: SessionName) -> None:
        """If it is there. Raises OSError."""
        self._drop(self._file_name(name))

    # ---- room ----

    def _make_room(self, num_files: int, num_bytes: int, tenant: str | None = None) -> None:
        """For so many more, of that tenant. Raises OSError."""
        while True:
            is_crowded = len(self._files) + num_files > self._max_num_sessions
            if not is_crowded and self._num_bytes + num_bytes <= self._max_bytes:
                return
            self._drop(self._next_to_go(tenant, is_crowded))

    def _next_to_go(self, tenant: str | None, is_crowded: bool) -> str:
        """The oldest file of who takes most: files if these are too many, bytes otherwise. A tenant's own if equal."""
        largest: set[str | None] = {None}
        if None not in self._shares:
            taken = {each: s.num_files if is_crowded else s.num_bytes for each, s in self._shares.items()}
            most = max(taken.values())
            largest = {tenant} if taken.get(tenant) == most else {each for each in taken if taken[each] == most}
        return next(file_name for file_name, file in self._files.items() if file.tenant in largest)

    def _drop(self, file_name: str) -> None:
        (self._folder / file_name).unlink(missing_ok=True)
        self._take_out(file_name)

    def _put(self, file_name: str, file: _File) -> None:
        self._files[file_name] = file
        share = self._shares[file.tenant]
        share.num_files += 1
        share.num_bytes += file.num_bytes
        self._num_bytes += file.num_bytes

    def _take_out(self, file_name: str) -> None:
        file = self._files.pop(file_name, None)
        if file is None:
            return
        share = self._shares[file.tenant]
        share.num_files -= 1
        share.num_bytes -= file.num_bytes
        self._num_bytes -= file.num_bytes
        if share.num_files == 0:
            del self._shares[file.tenant]

    # ---- files ----

    def _scan(self) -> None:
        """All files count as useless until recall() has read them."""
        for path in self._folder.iterdir():
            status = path.lstat()
            if _FILE_NAME.fullmatch(path.name.removesuffix(_NEW)) is None or not stat.S_ISREG(status.st_mode):
                continue
            if path.name.endswith(_NEW):  # somebody was killed while writing it
                path.unlink()
                continue
            self._put(path.name, _File(None, _num_page_bytes(status.st_size)))
            number = self._read_number(path.name)
            if number is not None:
                self._found.append((number, path.name))
                self._last_number = max(self._last_number, number)

    def _read_number(self, file_name: str) -> int | None:
        """None if the file is another fingerprint's, or no session at all."""
        head = self._read_bytes(file_name, _HEAD.size)
        if len(head) < _HEAD.size:
            return None
        magic, fingerprint, number, _ = _HEAD.unpack(head)
        return int(number) if (magic, fingerprint) == (_MAGIC, self._fingerprint) else None

    def _read(self, file_name: str) -> _Body | None:
        """None if it is damaged."""
        content = self._read_bytes(file_name, self._max_bytes)
        if len(content) < _HEAD.size:
            return None
        number, digest = _HEAD.unpack_from(content)[2:]
        payload = content[_HEAD.size :]
        if digest != self._digest(file_name, number, payload):
            return None
        try:
            body = msgspec.msgpack.decode(payload, type=_Body)
        except msgspec.DecodeError:
            return None
        return body if len(body.token_ids) % np.dtype(np.int32).itemsize == 0 else None

    def _read_bytes(self, file_name: str, max_bytes: int) -> bytes:
        """Of its beginning; empty if it cannot be read."""
        try:
            fd = os.open(self._folder / file_name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            with os.fdopen(fd, "rb") as file:
                return file.read(max_bytes)
        except OSError as error:
            logger.warning("%s in %s cannot be read: %s", file_name, self._folder, error.strerror)
            return b""

    def _encode(self, file_name: str, body: _Body) -> bytes:
        self._last_number += 1
        payload = msgspec.msgpack.encode(body)
        digest = self._digest(file_name, self._last_number, payload)
        return _HEAD.pack(_MAGIC, self._fingerprint, self._last_number, digest) + payload

    def _digest(self, file_name: str, number: int, payload: bytes) -> bytes:
        digest = hashlib.blake2b(payload, digest_size=16, key=bytes.fromhex(file_name))
        digest.update(self._fingerprint + number.to_bytes(8, "little"))
        return digest.digest()

    def _file_name(self, name: SessionName) -> str:
        return hashlib.blake2b(msgspec.msgpack.encode(name), digest_size=16, key=self._fingerprint).hexdigest()

    def _replace(self, file_name: str, content: bytes) -> None:
        new = self._folder / (file_name + _NEW)
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(content)
            new.replace(self._folder / file_name)
        except OSError:
            new.unlink(missing_ok=True)
            raise


def _num_page_bytes(num_bytes: int) -> int:
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
