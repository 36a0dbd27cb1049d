"""An engine in a process of its own on this machine, reached over a Unix socket.

The process is named, not imported: `python -m worker --endpoint ipc://...` reads its EngineConfig as JSON from
standard input until end of file, listens at the endpoint, answers Hello with Ready once the model is loaded,
and exits when it gets Shutdown or when its parent is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence

import msgspec

from gateway.engine.delta_stream import DeltaRouter, DeltaStream
from gateway.engine.engine_answers import EngineAnswers
from gateway.engine.engine_client import EngineDeadError
from gateway.engine.engine_process import EngineProcess
from gateway.engine.heartbeat import Heartbeat
from schedcore.api import wire
from schedcore.api.config import EngineConfig
from schedcore.api.frame_socket import FrameError, FrameSocket, connect
from schedcore.api.types import (
    Advisory,
    CacheReset,
    EngineInfo,
    EngineRequest,
    EngineStats,
    ErrorCode,
    SessionState,
    TokenDelta,
)

CONNECT_SECONDS = 0.01  # between two looks whether the engine listens
ADVISE_SECONDS = 2.0  # that an engine may take to answer an advisory; a long step delays it
RESET_SECONDS = 30.0  # the same of a reset of its cache, for which whoever measures is ready to wait
EXIT_SECONDS = 10.0  # that an engine may take to exit when asked to, before it is killed
HANG_UP_SECONDS = 5.0  # that an engine may take to exit once it has hung up, before it is killed

_log = logging.getLogger("hocket.gateway")


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
        self._router = DeltaRouter(self._abort)
        self._answers = EngineAnswers[SessionState]()
        self._resets = EngineAnswers[CacheReset]()
        self._info: EngineInfo | None = None
        self._stats: EngineStats | None = None
        self._death: str | None = None
        self._is_closing = False
        self._settled = asyncio.Event()  # ready or dead
        self._dead = asyncio.Event()
        self._launched = launched
        self._process: EngineProcess | None = None
        self._socket: FrameSocket | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._heartbeat = Heartbeat(timeout_seconds, self._on_readable, self._ask, self._on_silence)
        self._timeout_seconds = timeout_seconds
        self._hang_up_timer: asyncio.TimerHandle | None = None
        self._resources = contextlib.ExitStack()

    @property
    def info(self) -> EngineInfo:
        self._check_alive()
        assert self._info is not None
        return self._info

    @property
    def is_alive(self) -> bool:
        return self._info is not None and self._death is None

    @property
    def death(self) -> str | None:
        return self._death

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def stats(self) -> EngineStats | None:
        return self._stats

    def stream(self, requests: Sequence[EngineRequest]) -> DeltaStream:
        self._check_alive()
        frames = [wire.encode(wire.Submit(request)) for request in requests]  # raises before anything is open
        stream = self._router.open(request.request_id for request in requests)
        try:
            for frame in frames:
                self._send_frame(frame)
        except BaseException:
            stream.close()
            raise
        return stream

    async def advise(self, advisory: Advisory) -> SessionState:
        self._check_alive()
        self._send(wire.Advise(advisory))
        return await self._answers.wait_for(advisory.request_id, ADVISE_SECONDS)

    async def reset_prefix_cache(self, request_id: int) -> CacheReset:
        self._check_alive()
        self._send(wire.ResetCache(request_id))
        return await self._resets.wait_for(request_id, RESET_SECONDS)

    async def wait_until_dead(self) -> None:
        await self._dead.wait()

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(self._death)
        if self._info is None:
            raise EngineDeadError("The engine is starting.", code="starting")

    async def start(self) -> None:
        try:
            self._spawn()
        except OSError as error:
            self._die(f"The engine cannot be started: {error}.")
        while self._socket is None and not self._settled.is_set():
            self._connect()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), CONNECT_SECONDS)
        await self._settled.wait()
        if self._death is not None:
            raise EngineDeadError(self._death)

    def _spawn(self) -> None:
        self._process = self._launched or EngineProcess(self._config, self._module, self._python)
        self._resources.callback(self._process.remove_folder)
        self._watcher = asyncio.create_task(self._watch(self._process))

    async def close(self) -> None:
        self._is_closing = True
        if self._process is not None and self._process.status is None:
            self._send(wire.Shutdown())
            await self._reap(self._process)
        self._die("The engine was shut down.")
        if self._watcher is not None:
            await self._watcher
        self._hang_up()
        if self._hang_up_timer is not None:
            self._hang_up_timer.cancel()
        self._resources.close()

    def _connect(self) -> None:
        """Says Hello if the engine listens by now."""
        try:
            assert self._process is not None
            self._socket = connect(self._process.endpoint)
        except OSError:
            return
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._on_readable)
        self._send(wire.Hello())

    def _hang_up(self) -> None:
        """Idempotent."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            asyncio.get_running_loop().remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None

    async def _watch(self, process: EngineProcess) -> None:
        status = await process.wait()
        while self._on_readable():
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

    def _abort(self, request_id: int) -> None:
        if self.is_alive:
            self._send(wire.Abort(request_id))

    def _send(self, message: wire.ToEngine) -> None:
        self._send_frame(wire.encode(message))

    def _send_frame(self, frame: bytes) -> None:
        if self._socket is None:
            return
        with contextlib.suppress(ConnectionError):  # it died; the watcher says so
            self._socket.send(frame)
        if self._socket.has_unsent:
            asyncio.get_running_loop().add_writer(self._socket.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(ConnectionError):
            self._socket.flush()
        if not self._socket.has_unsent:
            asyncio.get_running_loop().remove_writer(self._socket.fileno())

    def _on_readable(self) -> bool:
        """False if nothing has arrived."""
        if self._socket is None:
            return False
        try:
            frames = self._socket.receive()
        except FrameError as error:
            self._give_up(f"The engine sent what is no message: {error}.")
            return False
        except ConnectionError:  # it ends or has died; the watcher says how
            self._hang_up()
            self._expect_exit()
            return False
        if frames:
            self._heartbeat.note()
        try:
            self._on_messages([wire.decode_to_gateway(frame) for frame in frames])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._give_up(f"The engine sent what is no message: {error}.")
        return bool(frames)

    def _on_messages(self, messages: list[wire.ToGateway]) -> None:
        """Steps that came together are passed on together: while we are behind, a connection gets one write for all."""
        deltas: list[TokenDelta] = []
        for message in messages:
            if isinstance(message, wire.Deltas):
                deltas += message.deltas
            else:
                self._router.dispatch(deltas)
                deltas = []
                self._on_message(message)
        self._router.dispatch(deltas)

    def _on_message(self, message: wire.ToGateway) -> None:
        match message:
            case wire.Session(state):
                self._answers.dispatch(state)
            case wire.Reset(answer):
                self._resets.dispatch(answer)
            case wire.Stats(stats):
                self._stats = stats
            case wire.Ready(info):
                self._info = self._info or info
                self._settled.set()
                self._heartbeat.start()
            case wire.Pong():
                pass
            case wire.Fatal(reason):
                self._die(reason)
                self._expect_exit()

    def _ask(self) -> None:
        self._send(wire.Ping())

    def _on_silence(self) -> None:
        self._give_up(f"The engine hung: it said nothing for {self._timeout_seconds:g} seconds.")

    def _expect_exit(self) -> None:
        """Who has hung up is about to exit; who stays is of no use."""
        if not self._is_closing and self._hang_up_timer is None:
            loop = asyncio.get_running_loop()
            self._hang_up_timer = loop.call_later(HANG_UP_SECONDS, self._give_up, "The engine hung up.")

    def _give_up(self, reason: str) -> None:
        self._die(reason)
        self._kill()
        self._hang_up()

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _die(self, reason: str) -> None:
        """Idempotent; the first reason counts."""
        self._heartbeat.stop()
        if self._death is None:
            self._death = reason
            if self._info is not None and not self._is_closing:
                _log.error("%s Open requests: %d", reason, self._router.num_open)
            self._settled.set()
            self._dead.set()
            self._router.fail_all(ErrorCode.ENGINE_DEAD, reason)
            self._answers.fail_all(reason)
            self._resets.fail_all(reason)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"
