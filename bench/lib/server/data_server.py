"""A server under test with a data directory of its own, which goes with it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from bench.lib.server.server_process import ServerProcess


class DataServer(ServerProcess):
    def __init__(self, name: str, command: str, model: str, log: Path) -> None:
        self._data = tempfile.mkdtemp(prefix="hocket-bench-")
        super().__init__(name, f"{command} --no-access-log --data-dir {self._data}", model, log)

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self._data, ignore_errors=True)
