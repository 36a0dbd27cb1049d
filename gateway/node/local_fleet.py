"""`hocket fleet up --local N`: one gateway and N nodes on this machine, kept running as an init system would."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from gateway.base.console import say
from gateway.node.node_manager import DONE, SUPERSEDED

RESTART_SECONDS = 1.0  # before a node manager that died is started again
STOP_SECONDS = 45.0  # that a process may take to drain, before it is killed
LOOK_SECONDS = 0.2


class LocalFleet:
    def __init__(self, model: str, num_nodes: int, run_dir: Path, serve_options: Sequence[str]) -> None:
        """run_dir: a folder per node is made in it."""
        self._fleet_address = f"127.0.0.1:{_free_port()}"
        self._model, self._run_dir = model, run_dir
        self._serve_options = serve_options
        self._names = [f"node-{i + 1}" for i in range(num_nodes)]
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: dict[str, float] = {}  # when the manager died
        self._stop = threading.Event()

    def run(self) -> int:
        """The gateway's exit status. Returns after SIGINT, SIGTERM or SIGHUP, or when the gateway has ended."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop.set())
        gateway = _start("serve", self._model, "--fleet-listen", self._fleet_address, *self._serve_options)
        try:
            for name in self._names:
                self._start_node(name)
            while gateway.poll() is None and not self._stop.wait(LOOK_SECONDS):
                self._keep_nodes()
        finally:
            _end(gateway)  # first: what it has open may end
            for node in self._nodes.values():
                node.send_signal(signal.SIGTERM)
            for node in self._nodes.values():
                _end(node)
        return gateway.returncode

    def _start_node(self, name: str) -> None:
        folder = self._run_dir / name
        options = ("--gateways", self._fleet_address, "--name", name, "--run-dir", str(folder), "--model", self._model)
        self._nodes[name] = _start("node", *options)

    def _keep_nodes(self) -> None:
        for name, node in list(self._nodes.items()):
            if node.poll() is None:
                continue
            if node.returncode in (DONE, SUPERSEDED):  # it was drained
                del self._nodes[name]
                say(f"{name} has left")
            elif name not in self._ended:
                say(f"the manager of {name} ended with status {node.returncode}; it is started again")
                self._ended[name] = time.monotonic()
            elif time.monotonic() - self._ended[name] > RESTART_SECONDS:
                del self._ended[name]
                self._start_node(name)


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C is for us, who stop them in order."""
    return subprocess.Popen([sys.executable, "-m", "gateway.cli.main", *arguments], start_new_session=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    """Somebody else may take it before the gateway does; then that says so."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
