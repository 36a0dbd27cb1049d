"""What a command says to its user, on standard error: its output is for what was asked for."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    print(f"hocket: {message}", file=sys.stderr, flush=True)


def complain(message: str, status: int) -> int:
    """Returns the exit status."""
    print(f"hocket serve: {message}", file=sys.stderr, flush=True)
    return status
