"""A server told to stop, or killed, while it starts leaves no engine behind and no folder of its socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from fakes.eventually import wait_until


@pytest.mark.parametrize("delay", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(tmp_path: Path, sent: signal.Signals, delay: float) -> None:
    """delay: seconds after the engine's process began."""
    command = [sys.executable, "-m", "gateway.cli.main", "serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
    folder = Path(tempfile.mkdtemp())  # not tmp_path: the name of a socket is short
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, env=os.environ | {"TMPDIR": str(folder)}, stdout=log, stderr=log)
    try:
        wait_until(psutil.Process(server.pid).children, seconds=60)
        (engine,) = psutil.Process(server.pid).children()
        time.sleep(delay)
        server.send_signal(sent)
        server.wait(60)
        wait_until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE, seconds=60)
        wait_until(lambda: not list(folder.iterdir()))
        folder.rmdir()
    finally:
        server.kill()
    assert "Traceback" not in (tmp_path / "log").read_text()
