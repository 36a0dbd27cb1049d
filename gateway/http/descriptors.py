"""File descriptors: how many this process may have, and how many of them connections may take."""

from __future__ import annotations

import resource
from pathlib import Path

_ENOUGH = 65_536  # more would be more than a gateway can serve
_SPARE = 64  # for an engine that is started again, the database, the log: never given to connections
NUM_RESERVED = 16  # connections beyond the limit, which /health and /metrics are answered on


def raise_limit() -> int:
    """The soft limit becomes the hard one. The number of descriptors that this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # a system that says more than it allows
            return soft
        return wanted
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def num_open() -> int:
    """Descriptors in use; a guess where the system does not say."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return sum(1 for _ in Path(folder).iterdir())
        except OSError:
            continue
    return _SPARE


def max_connections(wanted: int, limit: int, in_use: int) -> int:
    """As many as wanted if `limit` descriptors allow it: each may hold a file besides, and some are kept."""
    free = limit - in_use - min(_SPARE, limit // 4) - NUM_RESERVED
    return max(1, min(wanted, free // 2))
