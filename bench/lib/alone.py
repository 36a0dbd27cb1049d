"""Who builds in a folder that others build in, too: test processes beside each other."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Nobody else who asks is between here and the end; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
