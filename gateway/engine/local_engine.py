"""An engine in a process of its own on this machine, reached over a Unix socket.

The process is named, not imported: `python -m worker --endpoint ipc://...` reads its EngineConfig as JSON from
standard input until end of file, listens at the endpoint, answers Hello with Ready once the model is loaded,
and exits when it gets Shutdown or when its parent is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence

from gateway.engine.delta_stream import DeltaStream
from gateway.engine.engine_client import EngineDeadError
from gateway.engine.engine_line import EngineLine
from gateway.engine.engine_process import EngineProcess
from schedcore.api import wire
from schedcore.api.config import EngineConfig
from schedcore.api.frame_socket import connect
from schedcore.api.types import Advisory, CacheReset, EngineInfo, EngineRequest, EngineStats, SessionState

CONNECT_SECONDS = 0.01  # between two looks whether the engine listens
EXIT_SECONDS = 10.0  # that an engine may take to exit when asked to, before it is killed
HANG_UP_SECONDS = 5.0  # that an engine may take to exit once it has hung up, before it is killed


class LocalEngine:
    """One instance is one engine process; a dead engine stays dead (supervised_engine.py starts another)."""

    def __init__(
        self,
        config: EngineConfig,
        module: str = "worker",
        timeout_seconds: float = 60.0,
        python: str = sys.executable,
        launched: EngineProcess | None = None,
    ) -> None:
        """timeout_seconds: of silence, after which a ready engine has hung and is killed; 0: never.

        python: the interpreter that runs the module, whose environment may be another. launched: the process, if it is
        on its way already.
        """
        self._config = config
        self._module, self._python = module, python
        self._line = EngineLine(timeout_seconds, self._give_up, self._on_hung_up)
        self._is_closing = False
        self._launched = launched
        self._process: EngineProcess | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._hang_up_timer: asyncio.TimerHandle | None = None
        self._resources = contextlib.ExitStack()

    @property
    def info(self) -> EngineInfo:
        return self._line.info

    @property
    def is_alive(self) -> bool:
        return self._line.is_alive

    @property
    def death(self) -> str | None:
        return self._line.death

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def stats(self) -> EngineStats | None:
        return self._line.last_stats

    def stream(self, requests: Sequence[EngineRequest]) -> DeltaStream:
        return self._line.stream(requests)

    async def advise(self, advisory: Advisory) -> SessionState:
        return await self._line.advise(advisory)

    async def reset_prefix_cache(self, request_id: int) -> CacheReset:
        return await self._line.reset_prefix_cache(request_id)

    async def wait_until_dead(self) -> None:
        await self._line.dead.wait()

    async def start(self) -> None:
        try:
            self._spawn()
        except OSError as error:
            self._die(f"The engine cannot be started: {error}.")
        while not self._line.is_attached and not self._line.settled.is_set():
            self._connect()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._line.settled.wait(), CONNECT_SECONDS)
        await self._line.settled.wait()
        if self._line.death is not None:
            raise EngineDeadError(self._line.death)

    def _spawn(self) -> None:
        self._process = self._launched or EngineProcess(self._config, self._module, self._python)
        self._resources.callback(self._process.remove_folder)
        self._watcher = asyncio.create_task(self._watch(self._process))

    async def close(self) -> None:
        self._is_closing = True
        if self._process is not None and self._process.status is None:
            self._line.send(wire.Shutdown())
            await self._reap(self._process)
        self._die("The engine was shut down.")
        if self._watcher is not None:
            await self._watcher
        self._line.detach()
        if self._hang_up_timer is not None:
            self._hang_up_timer.cancel()
        self._resources.close()

    def _connect(self) -> None:
        """Says Hello if the engine listens by now."""
        assert self._process is not None
        with contextlib.suppress(OSError):
            self._line.attach(connect(self._process.endpoint))

    async def _watch(self, process: EngineProcess) -> None:
        status = await process.wait()
        while self._line.read():
            pass  # its last words
        self._die(f"The engine {_how_it_ended(status)}.")

    async def _reap(self, process: EngineProcess) -> None:
        for stop in (None, process.terminate, process.kill):
            if stop is not None:
                with contextlib.suppress(ProcessLookupError):
                    stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), EXIT_SECONDS)
                return

    def _on_hung_up(self) -> None:
        """Who has hung up is about to exit, and the watcher says how; who stays is of no use."""
        if not self._is_closing and self._hang_up_timer is None:
            loop = asyncio.get_running_loop()
            self._hang_up_timer = loop.call_later(HANG_UP_SECONDS, self._give_up, "The engine hung up.")

    def _give_up(self, reason: str) -> None:
        self._die(reason)
        self._kill()
        self._line.detach()

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _die(self, reason: str) -> None:
        """Idempotent; the first reason counts."""
        self._line.die(reason, is_expected=self._is_closing)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"
