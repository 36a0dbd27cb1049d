"""`python -m gateway.offline.checking.checker` checks an input file in its own process: the gateway keeps answering.

stdin: a CheckTask as JSON. stdout: frames, each its length (4 bytes, big endian) and a Checked as MessagePack; the
last one has a verdict.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec

from gateway.offline.checking.checking import Checker, CheckTask, LineError
from gateway.offline.store.records import CheckedRow

LENGTH = struct.Struct(">I")
_ROWS_PER_FRAME = 500
_BYTES_PER_FRAME = 2**20  # of error lines
_NICENESS = 10  # serving comes first


class Verdict(msgspec.Struct, frozen=True):
    fatal: LineError | None
    model: str | None


class Checked(msgspec.Struct, frozen=True):
    rows: list[CheckedRow]
    errors: list[LineError]
    verdict: Verdict | None = None


def check(task: CheckTask, out: BinaryIO) -> None:
    checker = Checker(task)
    rows: list[CheckedRow] = []
    errors: list[LineError] = []
    num_bytes = 0
    with Path(task.path).open("rb") as file:
        for row, error in checker.rows(file):
            rows.append(row)
            if error is not None:
                errors.append(error)
                num_bytes += len(row.error_line or b"")
            if len(rows) >= _ROWS_PER_FRAME or num_bytes >= _BYTES_PER_FRAME:
                _write(out, Checked(rows, errors))
                rows, errors, num_bytes = [], [], 0
    _write(out, Checked(rows, errors, Verdict(checker.fatal, checker.model)))


def _write(out: BinaryIO, checked: Checked) -> None:
    frame = msgspec.msgpack.encode(checked)
    out.write(LENGTH.pack(len(frame)) + frame)
    out.flush()


def main() -> int:
    os.nice(_NICENESS)
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=CheckTask)
    try:
        check(task, sys.stdout.buffer)
    except BrokenPipeError:  # the gateway is gone, or does not want to know any more
        os._exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
