"""`hocket serve` with 128 descriptors among clients that hold connections: it answers, and starts its engine again."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from fakes.byte_tokenizer import write_byte_checkpoint

ROOT = Path(__file__).resolve().parents[3]
MAX_TRIES = 10_000
NUM_DESCRIPTORS = 128
NUM_HELD = 300
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


@dataclass
class Crowded:
    process: subprocess.Popen[str]
    port: int

    def hold(self, sent: bytes) -> socket.socket:
        """A connection that says this, and then nothing. The server may close it."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(sent)
        if sent.endswith(b"\r\n\r\n"):
            assert connection.recv(2**16).startswith(b"HTTP/1.1 200 ")
        return connection

    def get(self, path: str, body: object = None) -> str:
        """Asked again while it is 503: who has connected within the last second does not give way yet."""
        for _ in range(MAX_TRIES - 1):
            try:
                return self._get(path, body)
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    raise
        return self._get(path, body)

    def _get(self, path: str, body: object) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as response:
            return str(response.read().decode())


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Crowded]:
    command = [sys.executable, "-m", "fakes.fake_serve", str(write_byte_checkpoint(tmp_path / "bytes")), "--port", "0"]
    command += ["--data-dir", str(tmp_path / "data")]
    limited = ["bash", "-c", f'ulimit -n {NUM_DESCRIPTORS}; exec "$@"', "-", *command]
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    variables = {key: value for key, value in os.environ.items() if key != "HOCKET_API_KEY"} | {"PYTHONPATH": path}
    with subprocess.Popen(limited, stderr=subprocess.PIPE, text=True, env=variables, cwd=ROOT) as process:
        try:
            yield Crowded(process, _port_of(process))
        finally:
            process.kill()


def _port_of(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if match := re.search(r"chat in a browser: http://\S+:(\d+)/", line):
            return int(match[1])
    pytest.fail(said)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHost: local",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n",
    ],
    ids=["silence", "half a head", "idle", "another half"],
)
def test_who_holds_connections_keeps_nobody_out(crowded: Crowded, sent: bytes) -> None:
    with ExitStack() as held:
        for _ in range(NUM_HELD):
            held.enter_context(crowded.hold(sent))
        assert '"ok"' in crowded.get("/health")
        assert '"assistant"' in crowded.get("/v1/chat/completions", CHAT)
        assert "hocket_connections_closed_total" in crowded.get("/metrics")
        assert '"data"' in crowded.get("/v1/batches")
        assert psutil.Process(crowded.process.pid).num_fds() < NUM_DESCRIPTORS


def test_slow_bodies_leave_health_and_descriptors(crowded: Crowded) -> None:
    """These are served, so none of them is cut; there are descriptors left for an engine that dies meanwhile."""
    slow = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{"
    )
    with ExitStack() as held:
        for _ in range(NUM_HELD):
            held.enter_context(crowded.hold(slow))
        assert '"ok"' in crowded.get("/health")
        server = psutil.Process(crowded.process.pid)
        [engine] = [child for child in server.children() if "fake_worker" in " ".join(child.cmdline())]
        engine.kill()
        assert crowded.process.stderr is not None
        assert any("The engine was started again" in line for line in crowded.process.stderr)
        assert '"ok"' in crowded.get("/health")
        assert server.num_fds() < NUM_DESCRIPTORS
