"""`hocket serve` in a process of its own, for tests that talk HTTP to the whole server.

HOCKET_TEST_MODEL names another model directory than the demo model. HOCKET_TEST_ENGINE=fake replaces the engine by a
fake worker and the model by a byte tokenizer, so that the tests themselves can be tested where nothing is built.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from fakes.byte_tokenizer import write_byte_checkpoint

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0  # generous: a deadline, not a measurement
_URL = re.compile(r"chat in a browser: (http://\S+:\d+)/")


@dataclass(frozen=True)
class Server:
    url: str
    model: str
    process: subprocess.Popen[bytes]
    log_file: Path

    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def engine(self) -> psutil.Process:
        return psutil.Process(self.process.pid).children()[0]

    def metric(self, name: str, **labels: str) -> float:
        """The sum over the series of that name that carry those labels."""
        with urllib.request.urlopen(f"{self.url}/metrics") as response:
            lines = response.read().decode().splitlines()
        found = [line for line in lines if re.match(re.escape(name) + r"[ {]", line)]
        wanted = [line for line in found if all(f'{key}="{value}"' in line for key, value in labels.items())]
        return sum(float(line.rsplit(" ", 1)[1]) for line in wanted)

    def health(self) -> int:
        try:
            with urllib.request.urlopen(f"{self.url}/health") as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code


def serving(folder: Path, *arguments: str) -> AbstractContextManager[Server]:
    """The demo model on a free port. `folder` holds the log, and the files and batches."""
    if os.environ.get("HOCKET_TEST_ENGINE") == "fake":
        return serving_fake(folder, *arguments)
    model = os.environ.get("HOCKET_TEST_MODEL", "demo")
    return _serving(folder, ("gateway.cli.main", "serve"), model, *arguments)


def serving_fake(folder: Path, *arguments: str) -> AbstractContextManager[Server]:
    """The same gateway with a fake worker: answers cost nothing."""
    return _serving(folder, ("fakes.fake_serve",), str(write_byte_checkpoint(folder / "bytes")), *arguments)


@contextmanager
def _serving(folder: Path, module: tuple[str, ...], model: str, *arguments: str) -> Iterator[Server]:
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    variables = {key: value for key, value in os.environ.items() if key != "HOCKET_API_KEY"} | {"PYTHONPATH": path}
    log_file = folder / "server.log"
    with log_file.open("wb") as log:
        program = [sys.executable, "-m", *module, model, "--port", "0", "--data-dir", str(folder / "data")]
        process = subprocess.Popen([*program, *arguments], stderr=log, env=variables, cwd=ROOT)
    try:
        url = _wait_until_ready(process, log_file)
        yield Server(url, Path(model).name, process, log_file)
    finally:
        process.terminate()
        try:
            process.wait(timeout=START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], log_file: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while (match := _URL.search(log_file.read_text())) is None:
        assert process.poll() is None, log_file.read_text()
        assert time.monotonic() < deadline, log_file.read_text()
        time.sleep(0.02)
    return match[1]
