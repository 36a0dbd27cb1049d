"""Whether a directory may be a gateway's data directory: what others keep there is not touched.

A directory with a `store-id` is ours. One without is taken only if nothing is in it, or what a first start that was
killed leaves behind: then there is nothing to lose.
"""

from __future__ import annotations

import logging
import re
import stat
from pathlib import Path

from gateway.offline.database.database import StoreOpenError

STORE_ID = "store-id"
FILES, PARTS, LOCK = "files", "parts", "lock"
DATABASE = "store.db"

_FILE_NAME = re.compile(r"file-[0-9a-f]{24}")
_PART_NAME = re.compile(r"[0-9a-f]{24}")
_OURS_AT_FIRST = frozenset({LOCK, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal"})
_OF_THE_FILE_SYSTEM = "lost+found"  # at the top of a disk of its own
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_log = logging.getLogger("hocket.offline")


def is_file_name(name: str) -> bool:
    """Such as the store gives its files."""
    return _FILE_NAME.fullmatch(name) is not None


def is_part_name(name: str) -> bool:
    return _PART_NAME.fullmatch(name) is not None


def check_claim(path: Path) -> None:
    """Raises StoreOpenError if somebody else's things lie there, OSError if it cannot be looked at."""
    if not path.exists() or (path / STORE_ID).exists():
        return
    foreign = [entry.name for entry in sorted(path.iterdir()) if not _is_of_a_first_start(entry)]
    if not foreign:
        return
    if foreign == [FILES] and (path / FILES).is_dir() and _has_our_names_only(path / FILES):
        raise StoreOpenError(
            f"the data directory {path} has files, but no {STORE_ID}: nothing was changed. Restore {STORE_ID} and the "
            "database from the backup that the files came from, or name an empty directory with --data-dir"
        )
    raise StoreOpenError(
        f"the directory {path} is not empty and no data directory of hocket ({_few(foreign)}; there is no {STORE_ID}): "
        "nothing was changed. Name an empty or a new directory with --data-dir"
    )


def check_database_file(path: Path) -> None:
    """REQUIRES: the directory's database is the SQLite file in it. A new one would not know the files that are there.

    Raises StoreOpenError.
    """
    if (path / STORE_ID).exists() and not (path / DATABASE).exists():
        raise StoreOpenError(
            f"the data directory {path} has lost its database {DATABASE}: nothing was changed. Restore it from a "
            "backup, name the database that belongs to it with --database-url, or another directory with --data-dir"
        )


def tighten(folder: Path) -> None:
    """Only its owner may read it; where that cannot be arranged, a warning says so."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not mode & _OTHERS:
        return
    try:
        folder.chmod(mode & ~_OTHERS)
    except OSError:
        _log.warning("Others may look into %s (mode %03o), and this user cannot change that", folder, mode)
    else:
        _log.warning("Others could look into %s (mode %03o): only its owner may now", folder, mode)


def _is_of_a_first_start(entry: Path) -> bool:
    if entry.name == _OF_THE_FILE_SYSTEM or entry.name in _OURS_AT_FIRST:
        return True
    if entry.name == FILES:
        return entry.is_dir() and not any(entry.iterdir())
    if entry.name == PARTS:
        return entry.is_dir() and all(is_part_name(part.name) for part in entry.iterdir())
    return False


def _has_our_names_only(files: Path) -> bool:
    return all(is_file_name(entry.name) for entry in files.iterdir())


def _few(names: list[str]) -> str:
    shown = ", ".join(name[:40] for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
