"""The disk tier: blocks in append-only segment files, found by their keys, there again after a restart.

    segment   a header, then records of one size; the last one may be cut off by a crash
    record    magic, key, digest; then the block's bytes. The digest covers the key and the bytes

Opening reads the heads of all records, so the index is rebuilt from what the files say. Reading checks the digest:
a record that was damaged, or whose tail was never written, is a miss, never wrong bytes. Nothing is synced: what a
crash of the machine takes away is a miss too. All files together never take more than the bound; the oldest segment
goes first. Files are their owner's alone, and a folder is one engine's at a time.

Reads are plain ones into the host's memory and not through a mapping: a file that is cut off under a mapping would end
the process.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path

from schedcore.tiers.block_digest import Key, block_digest

logger = logging.getLogger(__name__)

BYTES_PER_SECOND = 5e8  # what reading and checking is believed to reach: hashing takes a second per GB
MAX_SEGMENT_BYTES = 256 << 20
SEGMENTS_PER_TIER = 8  # at least, so that dropping the oldest drops a small share
_SEGMENT_HEAD = struct.Struct("<16sQ")  # magic, bytes of a block
_RECORD_HEAD = struct.Struct("<8s16s16s")  # magic, key, digest
_SEGMENT_MAGIC = b"hocket blocks 1\n"
_RECORD_MAGIC = b"hktblock"
_SEGMENT_NAME = re.compile(r"segment-\d{8}")  # other files are somebody else's and stay


class DiskTierError(ValueError):
    """The folder cannot be used; the message says why and what to do."""


@dataclass(slots=True)
class _Segment:
    path: Path
    number: int
    fd: int
    size: int  # bytes in the file
    keys: list[Key] = field(default_factory=list)


class DiskTier:
    """Thread-safe: one thread may write while another reads."""

    def __init__(self, folder: Path, block_bytes: int, max_bytes: int) -> None:
        """Opens or makes the folder. Raises DiskTierError if it is in use or cannot be written."""
        self._record_bytes = _RECORD_HEAD.size + block_bytes
        self._block_bytes, self.max_bytes = block_bytes, max_bytes
        if max_bytes < _SEGMENT_HEAD.size + self._record_bytes:
            raise DiskTierError(
                f"{max_bytes} bytes of disk_cache_bytes are too little for a block of {block_bytes} bytes"
            )
        share = max(max_bytes // SEGMENTS_PER_TIER, _SEGMENT_HEAD.size + self._record_bytes)
        self._max_segment_bytes = min(MAX_SEGMENT_BYTES, share)
        self._max_segment_bytes = max(self._max_segment_bytes, _SEGMENT_HEAD.size + self._record_bytes)
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []  # oldest first
        self._places: dict[Key, tuple[_Segment, int]] = {}  # offset of the record
        self._next_number = 0
        self._is_open_for_append = False  # the last segment is this process's own
        self.folder = folder  # this process's alone until close()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = _lock(folder / "lock")
            self._scan()
        except OSError as error:
            raise DiskTierError(f"the disk cache {folder} cannot be used: {error.strerror}") from error

    # ---- what is there ----

    def all_keys(self) -> list[Key]:
        with self._lock:
            return list(self._places)

    @property
    def num_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def read(self, key: Key, into: memoryview) -> bool:
        """Fills `into` with the block. False if the disk does not have it, or not undamaged; it is then forgotten."""
        with self._lock:
            place = self._places.get(key)
            if place is None:
                return False
            segment, offset = place
            if self._read_record(segment, offset, key, into):
                return True
            del self._places[key]
            segment.keys.remove(key)
        logger.warning("a damaged block in %s was dropped", segment.path.name)
        return False

    def _read_record(self, segment: _Segment, offset: int, key: Key, into: memoryview) -> bool:
        head = bytearray(_RECORD_HEAD.size)
        try:
            num_read = os.preadv(segment.fd, [head, into], offset)
        except OSError as error:
            logger.warning("%s cannot be read: %s", segment.path.name, error.strerror)
            return False
        if num_read != self._record_bytes:
            return False
        magic, found, digest = _RECORD_HEAD.unpack(head)
        return bool(magic == _RECORD_MAGIC and found == key and digest == block_digest(key, into))

    # ---- writing ----

    def write(self, key: Key, block: memoryview) -> list[Key] | None:
        """Appends a block. The keys that had to go for it; None if it could not be written."""
        with self._lock:
            if key in self._places:
                return []
        head = _RECORD_HEAD.pack(_RECORD_MAGIC, key, block_digest(key, block))
        try:
            dropped = self._make_room()
            segment = self._segments[-1]
            num_written = os.pwritev(segment.fd, [head, block], segment.size)
            if num_written != self._record_bytes:
                os.ftruncate(segment.fd, segment.size)
                return None
        except OSError as error:
            logger.warning("a block was not written to the disk cache: %s", error.strerror)
            return None
        with self._lock:
            self._places[key] = (segment, segment.size)
            segment.keys.append(key)
            segment.size += self._record_bytes
        return dropped

    def _make_room(self) -> list[Key]:
        """The last segment takes a record more, and the bound holds with it. Returns the keys dropped."""
        dropped: list[Key] = []
        is_full = not self._is_open_for_append or not self._segments
        is_full = is_full or self._segments[-1].size + self._record_bytes > self._max_segment_bytes
        needed = self._record_bytes + (_SEGMENT_HEAD.size if is_full else 0)
        while self._segments and self.num_bytes + needed > self.max_bytes:
            if len(self._segments) == 1 and not is_full:
                is_full, needed = True, self._record_bytes + _SEGMENT_HEAD.size
            dropped += self._drop_oldest()
        if is_full:
            self._begin_segment()
        return dropped

    def _begin_segment(self) -> None:
        number = self._segments[-1].number + 1 if self._segments else self._next_number
        self._next_number = number + 1
        path = self.folder / f"segment-{number:08d}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.pwrite(fd, _SEGMENT_HEAD.pack(_SEGMENT_MAGIC, self._block_bytes), 0)
        with self._lock:
            self._segments.append(_Segment(path, number, fd, _SEGMENT_HEAD.size))
        self._is_open_for_append = True

    def _drop_oldest(self) -> list[Key]:
        with self._lock:
            segment = self._segments.pop(0)
            dropped = [key for key in segment.keys if self._places.pop(key, None) is not None]
            os.close(segment.fd)
        segment.path.unlink(missing_ok=True)
        return dropped

    # ---- opening and closing ----

    def _scan(self) -> None:
        for path in sorted(path for path in self.folder.iterdir() if _SEGMENT_NAME.fullmatch(path.name)):
            number = int(path.name.removeprefix("segment-"))
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            segment = _Segment(path, number, fd, os.fstat(fd).st_size)
            self._segments.append(segment)
            self._next_number = number + 1
            self._scan_segment(segment)
        while self._segments and self.num_bytes > self.max_bytes:
            self._drop_oldest()

    def _scan_segment(self, segment: _Segment) -> None:
        """Takes in the complete records; those of another block size are another engine's and wait to be dropped."""
        head = os.pread(segment.fd, _SEGMENT_HEAD.size, 0)
        if head != _SEGMENT_HEAD.pack(_SEGMENT_MAGIC, self._block_bytes):
            return
        last = segment.size - self._record_bytes
        for offset in range(_SEGMENT_HEAD.size, last + 1, self._record_bytes):
            magic, key, _ = _RECORD_HEAD.unpack(os.pread(segment.fd, _RECORD_HEAD.size, offset))
            if magic != _RECORD_MAGIC or key in self._places:
                continue
            self._places[key] = (segment, offset)
            segment.keys.append(key)

    def close(self) -> None:
        """What was written stays."""
        with self._lock:
            for segment in self._segments:
                os.close(segment.fd)
            self._segments.clear()
            self._places.clear()
        os.close(self._lock_fd)


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise DiskTierError(f"the disk cache {path.parent} is in use by another engine: give each its own") from None
    return fd
