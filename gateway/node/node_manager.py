"""`hocket node`: keeps one engine running and tells the gateways of it. Never imports torch.

It may be killed and started again at any time: the engine runs on, and the next manager adopts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from gateway import __version__
from gateway.config.config import ENGINES
from gateway.config.node_config import NodeConfig
from gateway.engine.restart_policy import RestartPolicy
from gateway.node.engine_record import EngineRecord, read_record
from gateway.node.gateway_dialers import GatewayDialers
from gateway.node.node_engine import NodeEngine, NodeEngineError, engine_command
from schedcore.api.cluster_tls import NODE, ClusterTls
from schedcore.api.config import EngineConfig
from schedcore.api.fleet_wire import (
    Drain,
    EngineSeat,
    Fence,
    FromGateway,
    NodeHello,
    NodeState,
    SeatState,
    Superseded,
)
from schedcore.api.frame_socket import NETWORK_SCHEME, network_address, network_endpoint

FAREWELL_SECONDS = 0.2  # for gateways to read that the node leaves
LOOK_SECONDS = 0.1  # between two looks at whether a draining engine is idle
_ALWAYS = 1 << 30  # restarts: whoever keeps the manager running wants an engine
DONE, FAILED, SUPERSEDED = 0, 1, 3  # exit statuses
ORDERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_log = logging.getLogger("hocket.node")


class RunDirInUseError(Exception):
    """Another node manager has it."""


class NodeManager:
    def __init__(self, config: NodeConfig, engine: EngineConfig, fingerprint: str) -> None:
        """Raises ClusterTlsError."""
        self._config, self._engine_config = config, engine
        self._run_dir = Path(config.run_dir).expanduser().resolve()
        tls = None if config.cluster_dir is None else ClusterTls(Path(config.cluster_dir), NODE)
        command = engine_command(
            config.vllm_python,
            ENGINES[config.engine],
            NETWORK_SCHEME + config.listen,
            NETWORK_SCHEME + config.blocks_address,
            config.cluster_dir,
            config.block_transport,
        )
        self._command, self._engine_input = command, msgspec.json.encode(engine)
        self._digest = _digest(self._command, self._engine_input)
        hello = NodeHello(
            config.name, secrets.token_hex(16), time.time(), fingerprint, socket.gethostname(), __version__
        )
        gateways = [NETWORK_SCHEME + gateway for gateway in config.gateways]
        self._gateways = GatewayDialers(gateways, tls, hello, self._state, self._on_message)
        self._engine: NodeEngine | None = None
        self._policy = RestartPolicy(_ALWAYS)
        self._num_restarts = 0
        self._last_death = ""
        self._is_draining = self._is_leaving = False
        self._status = DONE
        self._drain_at = asyncio.Event()
        self._stop = asyncio.Event()
        self._deadline = 0.0  # of the drain

    async def run(self) -> int:
        """The exit status. Raises RunDirInUseError, OSError."""
        self._run_dir.mkdir(parents=True, exist_ok=True)
        with _locked(self._run_dir):
            self._listen_to_signals()
            self._adopt()
            async with asyncio.TaskGroup() as group:
                work = (self._keep_engine, self._drain_when_told, self._gateways.keep_connected)
                tasks = [group.create_task(part()) for part in work]
                await self._stop.wait()
                for task in tasks:
                    task.cancel()
        return self._status

    # ---- its engine ----

    def _adopt(self) -> None:
        """Before any gateway hears of this manager: it is told of the engine that is there, and of no other."""
        record = read_record(self._run_dir)
        if record is not None:
            _log.info("adopting the engine that runs, pid %d", record.pid)
            self._engine = NodeEngine(self._run_dir, record, self._tell, None)

    async def _keep_engine(self) -> None:
        was_ready = self._engine is not None
        try:
            while True:
                engine = self._engine = self._engine or self._spawn()
                retiring = None
                if engine.record.config_digest != self._digest:
                    retiring = asyncio.create_task(self._retire(engine))
                self._tell()
                death = await engine.live()
                if retiring is not None:
                    await _end(retiring)
                was_ready = was_ready or engine.is_ready
                self._engine = None
                if self._is_leaving:
                    return
                await self._on_death(engine, death, was_ready=was_ready)
        except NodeEngineError as error:
            _log.error("%s", error)
            self._end(FAILED)

    async def _on_death(self, engine: NodeEngine, death: str, *, was_ready: bool) -> None:
        """What is wrong with an engine that was never ready is likely to stay wrong."""
        self._last_death = death
        _log.error("the engine of this node ended: %s; its log: %s", death, self._run_dir / "engine.log")
        self._tell()
        if not was_ready:
            self._end(FAILED)
            await asyncio.Event().wait()
        self._num_restarts += 1
        await asyncio.sleep(self._policy.delay(time.monotonic()) or 0.0)

    def _spawn(self) -> NodeEngine:
        return NodeEngine.spawn(self._run_dir, self._command, self._engine_input, self._digest, self._tell)

    async def _retire(self, engine: NodeEngine) -> None:
        """It was started with another configuration: what it has open may end."""
        _log.warning("the running engine has another configuration: it is drained, and another one started")
        deadline = time.monotonic() + self._config.drain_timeout_ms / 1e3
        await self._wait_until_idle(engine, lambda: deadline)
        await engine.shut_down()

    async def _wait_until_idle(self, engine: NodeEngine, deadline: Callable[[], float]) -> None:
        while True:
            if engine.is_idle or time.monotonic() >= deadline():
                return
            await asyncio.sleep(LOOK_SECONDS)

    # ---- what gateways hear ----

    def _state(self) -> NodeState:
        return NodeState(self._seat(), self._is_leaving)

    def _seat(self) -> EngineSeat:
        engine = self._engine
        if engine is None:
            state = SeatState.DEAD if self._last_death else SeatState.STARTING
            return EngineSeat(state, num_restarts=self._num_restarts, last_death=self._last_death)
        record: EngineRecord = engine.record
        is_retiring = record.config_digest != self._digest
        state = SeatState.READY if engine.is_ready else SeatState.STARTING
        if engine.is_ready and (self._is_draining or is_retiring):
            state = SeatState.DRAINING
        return EngineSeat(
            state,
            record.incarnation,
            self._advertised(record.network_endpoint),
            record.pid,
            self._num_restarts,
            self._last_death,
            engine.is_adopted,
            self._advertised(record.block_endpoint),
        )

    def _advertised(self, endpoint: str) -> str:
        if not endpoint:
            return ""
        host, port = network_address(endpoint)
        if self._config.advertise is not None:
            host = self._config.advertise
        elif host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        return network_endpoint(host, port)

    def _tell(self) -> None:
        self._gateways.tell()

    def _on_message(self, message: FromGateway) -> None:
        match message:
            case Fence(incarnation, reason):
                if self._engine is not None and self._engine.record.incarnation == incarnation:
                    _log.error("the engine is killed: %s", reason)
                    self._engine.fence(reason)
            case Drain(deadline_seconds):
                self._begin_drain(deadline_seconds)
            case Superseded():
                _log.error("another node has the name %s: this one ends", self._config.name)
                self._status = SUPERSEDED
                self._begin_drain(0.0)
            case _:
                pass

    # ---- its end ----

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._end, DONE)  # the engine runs on, for the next manager
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ORDERS)  # whoever started it may have let them wait until now

    def _on_signal(self) -> None:
        """Once more: at once."""
        self._begin_drain(0.0 if self._is_draining else self._config.drain_timeout_ms / 1e3)

    def _begin_drain(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._is_draining = True
        self._drain_at.set()
        self._tell()

    async def _drain_when_told(self) -> None:
        await self._drain_at.wait()
        if self._engine is not None:
            await self._wait_until_idle(self._engine, lambda: self._deadline)
        self._is_leaving = True
        self._tell()
        await asyncio.sleep(FAREWELL_SECONDS)
        if self._engine is not None:
            await self._engine.shut_down()
        self._end(self._status)

    def _end(self, status: int) -> None:
        self._status = status
        self._stop.set()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Two managers of one engine would start two. Raises RunDirInUseError."""
    with (run_dir / "node.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirInUseError(f"{run_dir} is another node manager's") from None
        yield


def _digest(command: list[str], engine_input: bytes) -> str:
    """Of what an engine is started with: equal ones may stand for each other."""
    content = msgspec.json.encode([__version__, command, engine_input.decode()])
    return hashlib.blake2b(content, digest_size=16).hexdigest()
