"""A node's engine process: started in a session of its own, or found running. It outlives its node manager."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import psutil  # type: ignore[import-untyped]

from gateway.engine.frame_line import FrameLine
from gateway.node.engine_record import EngineRecord, remove_record, write_record
from schedcore.api import wire
from schedcore.api.frame_socket import SCHEME, connect
from schedcore.peers.block_transport import TCP

LEASE_SECONDS = 60.0  # that an engine lives without a node manager and without a gateway
CONNECT_SECONDS = 0.05  # between two looks whether it listens
EXIT_SECONDS = 10.0  # that it may take to exit when asked to, before it is killed
STATS_SECONDS = 1.0  # in which a working engine says so: after that, who has said nothing has nothing open
LOG_FILE = "engine.log"
_SOCKET = "engine.sock"
_MAX_SOCKET_PATH = 100  # bytes; the system takes 107


class NodeEngineError(Exception):
    """One line that says why it cannot be started."""


class NodeEngine:
    """`record` says which process it is. Its exit is awaited whether or not it is a child of ours."""

    def __init__(
        self, run_dir: Path, record: EngineRecord, on_ready: Callable[[], None], child: subprocess.Popen[bytes] | None
    ) -> None:
        """child: None: it is adopted."""
        self.record = record
        self.is_adopted = child is None
        self.death_cause = ""  # that is known beforehand: it was fenced
        self._run_dir, self._child, self._on_ready = run_dir, child, on_ready
        self._is_ready = bool(record.incarnation)
        self._num_open = 0  # requests, by its last Stats
        self._line: FrameLine | None = None
        self._line_since = 0.0
        self._ended = asyncio.Event()

    @classmethod
    def spawn(
        cls, run_dir: Path, command: Sequence[str], config: bytes, digest: str, on_ready: Callable[[], None]
    ) -> NodeEngine:
        """command: without --endpoint. Raises NodeEngineError."""
        path = run_dir / _SOCKET
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
            raise NodeEngineError(f"the path of {run_dir} is too long for a socket in it")
        path.unlink(missing_ok=True)
        try:
            with (run_dir / LOG_FILE).open("ab") as log:
                child = subprocess.Popen(
                    [*command, "--endpoint", f"{SCHEME}{path}", "--lease-seconds", f"{LEASE_SECONDS:g}"],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,  # it outlives who reads
                    start_new_session=True,
                )
        except OSError as error:
            raise NodeEngineError(f"the engine cannot be started: {error}") from None
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died already; who waits for it hears that
            child.stdin.write(config)
            child.stdin.close()
        try:
            created = psutil.Process(child.pid).create_time()
        except psutil.Error:
            created = time.time()
        record = EngineRecord(child.pid, created, f"{SCHEME}{path}", digest)
        write_record(run_dir, record)
        return cls(run_dir, record, on_ready, child)

    @property
    def is_ready(self) -> bool:
        return self._is_ready

    @property
    def is_idle(self) -> bool:
        """As far as it has said."""
        has_listened = self._line is not None and time.monotonic() - self._line_since > STATS_SECONDS
        return has_listened and self._num_open == 0

    async def live(self) -> str:
        """Until it ends; how it ended. Speaks to it meanwhile, which holds its lease."""
        talking = asyncio.create_task(self._keep_talking())
        try:
            await self._wait_for_exit()
            self._ended.set()
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)
            if self._line is not None:
                self._line.close()
        status = None if self._child is None else self._child.wait()
        if not self.record.is_alive:
            remove_record(self._run_dir)
        return self.death_cause or _how_it_ended(status)

    def fence(self, reason: str) -> None:
        self.death_cause = reason
        self._signal(signal.SIGKILL)

    async def shut_down(self) -> None:
        """Asks it to exit, then makes it. REQUIRES: `live` is awaited by somebody."""
        if self._line is not None:
            self._line.send(wire.encode(wire.Shutdown()))
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXIT_SECONDS):
                    await self._ended.wait()
                    return
            self._signal(number)

    def _is_running(self) -> bool:
        return self.record.is_alive if self._child is None else self._child.poll() is None

    def _signal(self, number: int) -> None:
        if self._is_running():  # and no other process by that pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.record.pid, number)

    async def _wait_for_exit(self) -> None:
        """A process that is no child tells by its pidfd only."""
        try:
            descriptor = os.pidfd_open(self.record.pid)
        except ProcessLookupError:
            return
        loop = asyncio.get_running_loop()
        exited = loop.create_future()

        def on_exit() -> None:
            if not exited.done():
                exited.set_result(None)

        loop.add_reader(descriptor, on_exit)
        try:
            if self._is_running():  # it was still the one when the descriptor was opened
                await exited
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    async def _keep_talking(self) -> None:
        while True:
            if self._line is None or not self._line.is_open:
                with contextlib.suppress(OSError):
                    self._line = FrameLine(connect(self.record.endpoint), self._on_frames, lambda _: None)
                    self._line.send(wire.encode(wire.Hello()))
                    self._line_since = time.monotonic()
            await asyncio.sleep(CONNECT_SECONDS)

    def _on_frames(self, frames: list[bytes]) -> None:
        for frame in frames:
            try:
                message = wire.decode_to_gateway(frame)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            match message:
                case wire.Ready(_, incarnation, endpoint, blocks):
                    self.record = msgspec.structs.replace(
                        self.record, incarnation=incarnation, network_endpoint=endpoint, block_endpoint=blocks
                    )
                    write_record(self._run_dir, self.record)
                    self._is_ready = True
                    self._on_ready()
                case wire.Stats(stats):
                    self._num_open = sum(stats.num_running) + sum(stats.num_waiting)
                case wire.Fatal(reason):
                    self.death_cause = reason


def engine_command(
    python: str | None, module: str, listen: str, blocks: str, cluster_dir: str | None, block_transport: str = TCP
) -> list[str]:
    command = [python or sys.executable, "-m", module, "--listen", listen, "--listen-blocks", blocks]
    if block_transport != TCP:
        command += ["--block-transport", block_transport]
    return command if cluster_dir is None else [*command, "--cluster-dir", cluster_dir]


def _how_it_ended(status: int | None) -> str:
    if status is None:
        return "it ended"
    if status >= 0:
        return f"it exited with status {status}"
    with contextlib.suppress(ValueError):
        return f"it was killed by {signal.Signals(-status).name}"
    return f"it was killed by signal {-status}"
