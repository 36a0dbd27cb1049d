"""`<run-dir>/engine.json`: which process is this node's engine. By it a later node manager knows it again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import psutil  # type: ignore[import-untyped]

_FILE = "engine.json"
_CREATED_TOLERANCE = 0.5  # seconds: the system counts ticks


class EngineRecord(msgspec.Struct, frozen=True):
    pid: int
    created: float  # the process's start: pids come round
    endpoint: str  # ipc://, for the node manager
    config_digest: str  # of all that the engine was started with
    incarnation: str = ""  # empty before it was ready
    network_endpoint: str = ""
    block_endpoint: str = ""

    @property
    def is_alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.created) < _CREATED_TOLERANCE
            return bool(is_same and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False


def read_record(run_dir: Path) -> EngineRecord | None:
    """Of an engine that lives. None: there is none, or the file is no record."""
    try:
        record = msgspec.json.decode((run_dir / _FILE).read_bytes(), type=EngineRecord)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return record if record.is_alive else None


def write_record(run_dir: Path, record: EngineRecord) -> None:
    """Whoever reads meanwhile sees the old one or the new one."""
    new = run_dir / f"{_FILE}.new"
    new.write_bytes(msgspec.json.encode(record))
    new.replace(run_dir / _FILE)


def remove_record(run_dir: Path) -> None:
    """Idempotent."""
    (run_dir / _FILE).unlink(missing_ok=True)
