"""A server under test: started by a command, waited for, measured and stopped with everything it spawned."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

import psutil

POLL_SECONDS = 0.05
STOP_SECONDS = 20.0
IDLE_SECONDS = 1.0
IDLE_CORES = 0.05


class ServerFailedError(Exception):
    """The server ended or did not become healthy; the message ends with the last lines of its log."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_with_signals() -> None:
    """SIGTERM leaves the blocks of servers, too, which end them; SIGINT does even in a shell's background jobs.

    The first one counts: `timeout` sends two, and the second one would leave those blocks in the middle.
    """

    def end(number: int, _: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, end)


class ServerProcess:
    """Context manager: running and healthy inside, gone with all descendants outside.

    `command` is a shell command line in which {port} and {model} are filled in; environment assignments before
    it work. Its output goes to `log`.
    """

    def __init__(self, name: str, command: str, model: str, log: Path, timeout_seconds: float = 300.0) -> None:
        port = free_port()
        self.name = name
        self.command = command.format(port=port, model=model)
        self.base_url = f"http://127.0.0.1:{port}"
        self.startup_seconds = 0.0
        self.takes_turns = False  # stands still but for turn()
        self._log = log
        self._timeout_seconds = timeout_seconds

    def __enter__(self) -> ServerProcess:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        with self._log.open("wb") as output:
            # In this session: stand_back.py.
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", self.command], stdout=output, stderr=subprocess.STDOUT, process_group=0
            )
        try:
            self._wait_until_healthy(start + self._timeout_seconds)
        except BaseException:
            self.stop()
            raise
        self.startup_seconds = time.perf_counter() - start
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _wait_until_healthy(self, deadline: float) -> None:
        while not is_healthy(self.base_url):
            if self._process.poll() is not None:
                raise ServerFailedError(f"{self.name} ended with {self._process.returncode}\n{self._log_tail()}")
            if time.perf_counter() > deadline:
                raise ServerFailedError(f"{self.name} not healthy in {self._timeout_seconds:.0f} s\n{self._log_tail()}")
            time.sleep(POLL_SECONDS)

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])

    def processes(self) -> list[psutil.Process]:
        """The server's process and all its descendants that are alive."""
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def rss_bytes(self) -> int:
        """Resident memory of all processes; pages they share count once per process."""
        total = 0
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def cpu_seconds(self) -> float:
        """User and system time of all processes so far."""
        total = 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def wait_until_idle(self, timeout_seconds: float = 30.0) -> None:
        """Returns when all processes together used less than IDLE_CORES for IDLE_SECONDS, or after the timeout.

        A server goes on with things when it is healthy, as ours has the system back its cache with memory: what is
        measured meanwhile is not what it does from then on.
        """
        deadline = time.perf_counter() + timeout_seconds
        used, since = self.cpu_seconds(), time.perf_counter()
        while since < deadline:
            time.sleep(IDLE_SECONDS)
            now_used, now = self.cpu_seconds(), time.perf_counter()
            if now_used - used < IDLE_CORES * (now - since):
                return
            used, since = now_used, now

    def metrics_text(self) -> str:
        """The server's /metrics page, empty if it has none."""
        try:
            with urllib.request.urlopen(f"{self.base_url}/metrics", timeout=10) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError:
            return ""

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Runs inside, and stands still afterwards if it takes turns: an idle server may burn much of a core."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            if self.takes_turns:
                self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def stop(self) -> None:
        """Asks politely, then kills what is left. Idempotent."""
        self._signal(signal.SIGCONT)
        family = self.processes()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=STOP_SECONDS)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()


def is_healthy(base_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base_url}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
