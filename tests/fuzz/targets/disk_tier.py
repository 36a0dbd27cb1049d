"""Segments of the disk tier, written by us, by somebody else, or damaged: right bytes or none, and never an exception.

The input is a story: blocks are written, bytes of files overwritten, files cut off, the engine restarted.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path

from fuzz.cursor import Cursor
from schedcore.tiers.disk_tier import DiskTier, DiskTierError

BLOCK_BYTES = 24
MAX_BYTES = 2048
MAX_DISK_BYTES = 600
_MEMORY = "/dev/shm"
_FOLDER = Path(tempfile.mkdtemp(prefix="hocket-fuzz-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
logging.getLogger("schedcore.tiers.disk_tier").setLevel(logging.ERROR)


def check(data: bytes) -> None:
    shutil.rmtree(_FOLDER, ignore_errors=True)
    _FOLDER.mkdir()
    cursor = Cursor(data)
    story = _Story()
    try:
        while not cursor.is_empty:
            story.go_on(cursor)
    finally:
        story.tier.close()


class _Story:
    def __init__(self) -> None:
        self.tier = DiskTier(_FOLDER, BLOCK_BYTES, MAX_DISK_BYTES)
        self._written: dict[bytes, bytes] = {}  # a key stands for its content: it is never written with another

    def go_on(self, cursor: Cursor) -> None:
        match cursor.below(6):
            case 0 | 1:
                self._write(bytes([cursor.below(40)]) * 16)
            case 2:
                self._read_all()
            case 3:
                self._overwrite(cursor)
            case 4:
                self._add_file(cursor)
            case _:
                self.tier.close()
                self.tier = DiskTier(_FOLDER, BLOCK_BYTES, MAX_DISK_BYTES)
        assert self.tier.num_bytes <= MAX_DISK_BYTES

    def _write(self, key: bytes) -> None:
        content = (key * 2)[:BLOCK_BYTES]
        if self.tier.write(key, memoryview(content)) is not None:
            self._written[key] = content

    def _read_all(self) -> None:
        for key in self.tier.all_keys():
            into = bytearray(BLOCK_BYTES)
            if self.tier.read(key, memoryview(into)):
                assert bytes(into) == self._written.get(key), "bytes that nobody wrote"

    def _overwrite(self, cursor: Cursor) -> None:
        files = sorted(_FOLDER.glob("segment-*"))
        if not files:
            return
        path = files[cursor.below(len(files))]
        at, content = cursor.below(256), cursor.take(cursor.below(16))
        with path.open("r+b") as file:
            if content:
                file.seek(at)
                file.write(content)
            else:
                file.truncate(at)

    def _add_file(self, cursor: Cursor) -> None:
        """Between two lives of the engine."""
        self.tier.close()
        name = cursor.choice(["segment-00000000", "segment-00000009", "segment-9", "segment-x", "segment-", "other"])
        (_FOLDER / name).write_bytes(cursor.chunk())
        try:
            self.tier = DiskTier(_FOLDER, BLOCK_BYTES, MAX_DISK_BYTES)
        except DiskTierError as error:
            assert str(error)
            (_FOLDER / name).unlink()
            self.tier = DiskTier(_FOLDER, BLOCK_BYTES, MAX_DISK_BYTES)
