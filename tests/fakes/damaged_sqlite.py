"""A SQLite file with overwritten pages in its middle, as a bad disk leaves it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

_LEAVES = (0x0A, 0x0D)  # first byte of a page that holds rows: of an index (or a table without row ids), of a table


def overwrite_pages(path: Path, marker: bytes, kinds: tuple[int, ...] = _LEAVES) -> int:
    """Destroys the pages of these kinds that hold the marker; how many. REQUIRES: nobody has it open."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    content = bytearray(path.read_bytes())
    found = [start for start in range(size, len(content), size) if _holds(content[start : start + size], marker, kinds)]
    for start in found:
        content[start : start + size] = b"\xff" * size
    path.write_bytes(content)
    return len(found)


def _holds(page: bytearray, marker: bytes, kinds: tuple[int, ...]) -> bool:
    return page[0] in kinds and marker in page
