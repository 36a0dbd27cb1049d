"""One run of the server, once all that can be checked at once has been: what it tells its user, and when it stops."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import ssl
import sys
import time
from pathlib import Path

import msgspec
import uvloop
from aiohttp import web

from gateway.app import create_app
from gateway.base.console import complain, say
from gateway.base.supervision import Supervisor
from gateway.config import environment
from gateway.config.config import GatewayConfig
from gateway.engine.engine_client import EngineClient
from gateway.engine.engine_process import EngineProcess
from gateway.engine.local_engine import LocalEngine
from gateway.engine.restart_policy import RestartPolicy
from gateway.engine.supervised_engine import SupervisedEngine
from gateway.fleet.fleet_door import FleetDoor
from gateway.fleet.fleet_engine import FleetEngine
from gateway.http import descriptors
from gateway.http.connections import ConnectionLimits, Connections
from gateway.http.http_server import HttpServer
from gateway.http.listener import url
from gateway.model.checkpoint import Checkpoint, CheckpointError
from gateway.model.served_model import ServedModel
from gateway.offline.database.database import StoreOpenError, database_url
from gateway.offline.database.leader_lock import LeaderLock
from gateway.offline.store.accounts import Quota
from gateway.offline.store.directory import DirectoryInUseError
from gateway.offline.store.store import OfflineStore
from gateway.protocol.errors import UnavailableError
from gateway.services import Services
from gateway.stock.server_facts import PROBE_TEXT
from gateway.stock.stock_servers import StockServers
from schedcore.api.cluster_tls import GATEWAY, ClusterTls, ClusterTlsError
from schedcore.api.config import EngineConfig
from schedcore.api.frame_socket import NETWORK_SCHEME
from schedcore.api.model_path import model_fingerprint
from schedcore.api.time_slice import shorten_time_slice

_SHUTDOWN_SECONDS = 5.0  # for connections to close after the drain
_SWITCH_SECONDS = 0.0005  # until a thread beside the loop hands it the interpreter; Python's own are 5 ms
_FAILED = 1  # exit status


def run_server(
    config: GatewayConfig,
    engine: EngineConfig,
    checkpoint: Checkpoint,
    listener: socket.socket,
    tls: ssl.SSLContext | None,
    started: float,
    engine_module: str,
    launched: EngineProcess | None,
) -> int:
    """The exit status. started: time.monotonic(). launched: the engine's process, if it is on its way already."""
    try:
        offline = _open_store(config)
        _configure_logging()
        server = _Server(config, engine, checkpoint, listener, tls, offline, started, engine_module, launched)
        return uvloop.run(server.run())
    except (CheckpointError, StoreOpenError, FleetListenError) as error:
        return complain(str(error), _FAILED)


class FleetListenError(Exception):
    """The port for nodes cannot be opened; the message says why."""


def _open_store(config: GatewayConfig) -> OfflineStore | None:
    """Raises StoreOpenError."""
    if not config.enable_offline:
        return None
    directory = Path(config.data_dir).expanduser() if config.data_dir else environment.data_directory()
    try:
        quota = Quota(config.max_stored_bytes, config.max_pending_rows)
        lease_seconds = config.batch_lease_ms / 1e3 if config.share_batches else None
        return OfflineStore.open(
            directory, config.database_url, quota, config.webhook_targets, lease_seconds=lease_seconds
        )
    except DirectoryInUseError as error:
        if config.data_dir:
            raise
        say(f"warning: no files and batches on this server: {error}")
        return None


class _Server:
    """One run of the server: what it tells its user, and when it stops."""

    def __init__(
        self,
        config: GatewayConfig,
        engine: EngineConfig,
        checkpoint: Checkpoint,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        offline: OfflineStore | None,
        started: float,
        engine_module: str,
        launched: EngineProcess | None,
    ) -> None:
        self._config = config
        self._engine_config = engine
        self._checkpoint = checkpoint
        self._listener = listener
        self._tls = tls
        self._offline = offline
        self._started = started
        self._engine_module = engine_module
        self._launched = launched
        self._status = 0

    async def run(self) -> int:
        """The exit status. Raises CheckpointError."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        shorten_time_slice()  # between a token and its client, every wait for a turn shows
        self._stop = asyncio.Event()
        self._services = await self._make_services()
        app = create_app(self._services, self._on_engine_settled)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
        say(f"loading {self._config.served_model_names[0]} from {self._checkpoint.directory}")
        await runner.setup()
        connections = self._make_connections()
        server = HttpServer(runner, self._listener, connections, self._tls, self._config.root_path)
        try:
            async with self._services.supervisor.running("connection_sweep", connections.keep_sweeping):
                server.start()
                self._listen_to_signals()
                await self._stop.wait()
            if self._services.serving.open:
                say(f"finishing {len(self._services.serving.open)} open requests; once more to abort them")
        finally:
            await server.close()
            await runner.cleanup()
        return self._status

    def _make_connections(self) -> Connections:
        wanted, limit = self._config.max_connections, descriptors.raise_limit()
        most = descriptors.max_connections(wanted, limit, descriptors.num_open())
        if most < wanted:
            say(f"{most} connections at a time instead of {wanted}: there are {limit} file descriptors (ulimit -n)")
        limits = ConnectionLimits.of(self._config, most)
        return Connections(limits, self._services.serving.metrics.connections, time.monotonic)

    async def _make_services(self) -> Services:
        supervisor = Supervisor()
        config = self._config
        model = ServedModel.load(
            self._checkpoint,
            config.served_model_names,
            config.tool_call_parser,
            config.reasoning_parser,
            config.pooler_config,
            self._engine_config.adapters(),
            json_has_space=config.json_has_space,
        )
        if config.fleet_listen is not None:
            fleet = self._make_fleet(config.fleet_listen, supervisor)
            return Services(config, fleet, model, self._offline, supervisor, fleet)
        engine = await self._make_client(model, supervisor)
        return Services(config, engine, model, self._offline, supervisor)

    def _make_fleet(self, listen: str, supervisor: Supervisor) -> FleetEngine:
        """Raises FleetListenError."""
        config = self._config
        try:
            tls = None if config.cluster_dir is None else ClusterTls(Path(config.cluster_dir), GATEWAY)
            door = FleetDoor(NETWORK_SCHEME + listen, tls)
        except (OSError, ClusterTlsError) as error:
            raise FleetListenError(f"--fleet-listen {listen}: {error}") from None
        where = door.endpoint.removeprefix(NETWORK_SCHEME)
        say(f"waiting for nodes: hocket node --gateways {where} --model {config.served_model_names[0]}")
        fingerprint = model_fingerprint(self._checkpoint.directory)
        timeout, wait = config.engine_timeout_ms / 1e3, config.fleet_wait_ms / 1e3
        target = None if config.ttft_target_ms is None else config.ttft_target_ms / 1e3
        leadership = None if target is None else self._make_leadership()
        return FleetEngine(door, tls, fingerprint, supervisor, timeout, wait, config.routing, target, leadership)

    def _make_leadership(self) -> LeaderLock | None:
        """None: no other gateway has the same database."""
        if self._offline is None or self._offline.leases is None or self._config.database_url is None:
            return None
        return LeaderLock(database_url(self._config.database_url), self._offline.leases.name)

    async def _make_client(self, model: ServedModel, supervisor: Supervisor) -> EngineClient:
        config = self._config
        if not config.engine_urls:
            return SupervisedEngine(self._make_engine, RestartPolicy(config.max_engine_restarts), supervisor)
        probe_ids = await model.tokenizer.encode(PROBE_TEXT, add_special_tokens=False)
        key = environment.engine_api_key()
        size = max(model.tokenizer.vocab_size, self._checkpoint.vocab_size)
        return StockServers(config.engine_urls, config.served_model_names, size, probe_ids, supervisor, key)

    def _make_engine(self, num_restarts: int) -> LocalEngine:
        config = self._engine_config
        if num_restarts and config.decision_record is not None:  # each engine writes a record of its own
            config = msgspec.structs.replace(config, decision_record=f"{config.decision_record}.{num_restarts}")
        python = self._config.vllm_python or sys.executable
        launched, self._launched = self._launched, None
        return LocalEngine(config, self._engine_module, self._config.engine_timeout_ms / 1e3, python, launched)

    def _on_engine_settled(self) -> None:
        engine = self._services.serving.engine
        if engine.is_alive:
            gc.collect()
            gc.freeze()  # what lives until the end need not be looked at again and again, while tokens wait
            self._greet()
        else:
            self._status = complain(engine.death or "the engine failed", _FAILED)
            self._stop.set()

    def _greet(self) -> None:
        info, config = self._services.serving.engine.info, self._config
        where = url(config, self._listener)
        curl = f"curl --unix-socket {config.uds} http://localhost" if config.uds else f"curl {where}"
        key = " -H 'authorization: Bearer KEY'" if config.api_keys else ""
        say(
            f"ready after {time.monotonic() - self._started:.1f} s: {info.dtype} on {info.device}, "
            f"context {info.max_model_len} tokens"
        )
        if (most_ms := info.max_decode_step_ms) is not None:
            most = f"{most_ms:.0f} ms at most" if most_ms else "twice the time of its decodes"
            if info.is_step_bound_derived:
                most += ", and to eight times that where first tokens would be late"
            say(f"prompts stretch a step in which others decode to {most} (--max-decode-step-ms, --itl-target-ms)")
        if info.host_cache_bytes > 0:
            of_sessions = " of sessions" if info.host_keeps_sessions_only else ""
            say(
                f"what the cache drops{of_sessions} is kept in {info.host_cache_bytes / 2**20:.0f} MiB of host memory "
                "at most (--host-cache-bytes)"
            )
        if info.max_ttft_ms is not None:
            say(f"who would wait {info.max_ttft_ms / 1000:g} s for the first token is refused (--max-ttft-ms)")
        if config.uds:
            say(f"listening on {config.uds}")
        else:
            say(f"chat in a browser: {where}/   or in a terminal: hocket chat --url {where}")
        say(
            f"""try: {curl}/v1/chat/completions -H 'content-type: application/json'{key} -d '{{"model": """
            f""""{config.served_model_names[0]}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'"""
        )
        if config.is_exposed and not config.api_keys:
            say("warning: other machines can reach this server, and no API key is set (--api-key)")

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            return
        error = UnavailableError("The server is shutting down.", code="shutting_down")
        for generation in self._services.serving.open:
            generation.fail(error)


def _configure_logging() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    access = logging.getLogger("hocket.access")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.addHandler(handler)
    access.propagate = False
