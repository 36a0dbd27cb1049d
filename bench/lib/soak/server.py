"""A server that a soak kills, stops and starts again, on one port, data directory and tier directory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil

from bench.lib.server.server_process import free_port, is_healthy

ROOT = Path(__file__).resolve().parents[3]
START_SECONDS = 120.0  # generous: a deadline, not a measurement
STOP_SECONDS = 60.0
KEYS = ("soak-key-1", "soak-key-2", "soak-key-3")
POLL_SECONDS = 0.1


class SoakFailedError(Exception):
    """The server does not come back, or does not go."""


class SoakServer:
    """`folder` gets data/, tier/ and server.log. Coroutines, since clients go on meanwhile."""

    def __init__(self, folder: Path, model: str, extra: tuple[str, ...] = ()) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.data, self.tier, self.log = folder / "data", folder / "tier", folder / "server.log"
        self.num_starts = 0
        self._command = [
            *(sys.executable, "-m", "gateway.cli.main", "serve", model, "--port", str(self.port)),
            *("--data-dir", str(self.data), "--kv-cache-memory-bytes", "24M", "--host-cache-bytes", "32M"),
            *("--disk-cache-dir", str(self.tier), "--disk-cache-bytes", "64M", "--max-engine-restarts", "1000000"),
            *("--engine-timeout-ms", "10000"),  # one that hangs is noticed within the test
            "--no-access-log",  # so that what is left of the log does not grow with requests
            *(word for key in KEYS for word in ("--api-key", key)),
            *extra,
        ]

    async def start(self) -> None:
        """Raises SoakFailedError."""
        self.num_starts += 1
        self._process = self._spawn()
        await self.until_healthy()

    def _spawn(self) -> subprocess.Popen[bytes]:
        """Under asyncio's debug mode: what is forgotten there is in the log."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")}
        variables |= {
            "PYTHONASYNCIODEBUG": "1",
            "PYTHONFAULTHANDLER": "1",
            "PYTHONWARNINGS": "default::ResourceWarning",
        }
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._command, cwd=ROOT, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    async def until_healthy(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not await asyncio.to_thread(is_healthy, self.url):
            if self._process.poll() is not None:
                raise SoakFailedError(f"the server ended with {self._process.returncode}, see {self.log}")
            if time.monotonic() > deadline:
                raise SoakFailedError(f"the server is not healthy after {START_SECONDS:g} s, see {self.log}")
            await asyncio.sleep(POLL_SECONDS)

    @property
    def gateway(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    def engine(self) -> psutil.Process | None:
        """None: there is none at the moment."""
        for child in self._family():
            with contextlib.suppress(psutil.Error):  # it has just ended
                if "worker" in child.cmdline():
                    return child
        return None

    async def metrics(self) -> str:
        def read() -> str:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
                return str(response.read().decode())

        return await asyncio.to_thread(read)

    def signal_engine(self, number: signal.Signals) -> None:
        if (engine := self.engine()) is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                engine.send_signal(number)

    async def until_another_engine(self, before: int | None) -> None:
        """Until another than process `before` serves. Raises SoakFailedError."""
        deadline = time.monotonic() + START_SECONDS
        while (engine := self.engine()) is None or engine.pid == before:
            if time.monotonic() > deadline:
                raise SoakFailedError(f"engine {before} has no successor after {START_SECONDS:g} s, see {self.log}")
            await asyncio.sleep(POLL_SECONDS)
        await self.until_healthy()

    async def end(self, number: signal.Signals) -> int:
        """The exit status; the engine has to be gone, too, a moment later. Raises SoakFailedError."""
        engine = self.engine()
        self._process.send_signal(number)
        try:
            status = await asyncio.to_thread(self._process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise SoakFailedError(f"the gateway is there {STOP_SECONDS:g} s after {number.name}") from None
        if engine is not None:
            _, alive = await asyncio.to_thread(psutil.wait_procs, [engine], STOP_SECONDS)
            if alive:
                raise SoakFailedError(f"the engine outlives its gateway by {STOP_SECONDS:g} s after {number.name}")
        return status

    def kill_what_is_left(self) -> None:
        for child in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._process.kill()
        self._process.wait()

    def _family(self) -> list[psutil.Process]:
        try:
            return self.gateway.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
