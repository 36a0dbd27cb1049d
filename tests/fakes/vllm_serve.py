"""An unmodified `vllm serve` of the demo model, by the Python that HOCKET_TEST_VLLM_PYTHON names."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fakes.served import ROOT

PYTHON = os.environ.get("HOCKET_TEST_VLLM_PYTHON")
MODEL = ROOT / "worker/demo_model"
START_SECONDS = 280.0
# The command line of the environment's package, whatever its script is called.
MAIN = "import sys; from vllm.entrypoints.cli.main import main; sys.argv[0] = 'vllm'; main()"
OPTIONS = ("--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16", "--max-model-len", "1024")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def vllm(log_file: Path, port: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    assert PYTHON is not None
    command = [PYTHON, "-c", MAIN, "serve", str(MODEL), "--port", str(port), *OPTIONS, *options]
    variables = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=variables, cwd="/", start_new_session=True)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers(port):
            assert process.poll() is None, log_file.read_text()
            assert time.monotonic() < deadline, log_file.read_text()
            time.sleep(0.2)
        yield process
    finally:
        stop(process)


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def stop(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    for number in (how, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
