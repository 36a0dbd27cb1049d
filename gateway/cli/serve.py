"""`hocket serve`: checks what can be checked at once, then runs the application until a signal."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from aiohttp import web

from gateway import environment
from gateway.app import create_app
from gateway.chat_template import ChatTemplate
from gateway.checkpoint import Checkpoint, CheckpointError
from gateway.cli.options import OptionsError, add_options, engine_config, gateway_config, read_file
from gateway.config import GatewayConfig
from gateway.local_engine import LocalEngine
from gateway.offline.database import StoreOpenError
from gateway.offline.directory import DirectoryInUseError
from gateway.offline.store import OfflineStore, Quota
from gateway.protocol.errors import UnavailableError
from gateway.restart_policy import RestartPolicy
from gateway.services import Services
from gateway.supervised_engine import SupervisedEngine
from gateway.tokenize import Tokenizer
from schedcore.config import EngineConfig
from schedcore.model_path import DEMO, ModelNotFoundError, resolve_model
from schedcore.time_slice import shorten_time_slice

_BACKLOG = 2048
_SHUTDOWN_SECONDS = 5.0  # for connections to close after the drain
_FAILED, _MISUSED = 1, 2  # exit statuses


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)


def run(args: argparse.Namespace, engine_module: str = "worker") -> int:
    """The exit status. `engine_module` is what `python -m` runs as the engine."""
    started = time.monotonic()
    try:
        options = _options(args)
        model = options.get("model", DEMO)
        folder = resolve_model(model)
        config = gateway_config(
            options, _name(model, folder), environment.api_keys(), environment.typing_webhook_secrets()
        )
        engine = engine_config(options, folder, config.served_model_names[0])
        template = options.get("chat_template")
        checkpoint = Checkpoint.read(folder, Path(template) if template else None)
        listener = _listen(config.host, config.port)
        offline = _open_store(config)
    except OptionsError as error:
        return _complain(str(error), _MISUSED)
    except (CheckpointError, ModelNotFoundError, StoreOpenError) as error:
        return _complain(str(error), _FAILED)
    except OSError as error:
        where = f"{options.get('host', GatewayConfig().host)}:{options.get('port', GatewayConfig().port)}"
        return _complain(f"cannot listen on {where}: {os.strerror(error.errno or 0)}", _FAILED)
    with listener:
        _configure_logging()
        try:
            return uvloop.run(_Server(config, engine, checkpoint, listener, offline, started, engine_module).run())
        except CheckpointError as error:
            return _complain(str(error), _FAILED)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    given = vars(args)
    if "config" not in given:
        return given
    parser = argparse.ArgumentParser(prog="hocket serve")
    add_options(parser)
    return read_file(Path(given["config"]), parser) | given


def _name(model: str, folder: Path) -> str:
    """A hub id and `demo` name themselves, a directory has a name."""
    return folder.name if Path(model).expanduser().is_dir() else model


def _listen(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def _open_store(config: GatewayConfig) -> OfflineStore | None:
    """Raises StoreOpenError."""
    if not config.enable_offline:
        return None
    directory = Path(config.data_dir).expanduser() if config.data_dir else environment.data_directory()
    try:
        quota = Quota(config.max_stored_bytes, config.max_pending_rows)
        return OfflineStore.open(directory, config.database_url, quota, config.webhook_targets)
    except DirectoryInUseError as error:
        if config.data_dir:
            raise
        _say(f"warning: no files and batches on this server: {error}")
        return None


class _Server:
    """One run of the server: what it tells its user, and when it stops."""

    def __init__(
        self,
        config: GatewayConfig,
        engine: EngineConfig,
        checkpoint: Checkpoint,
        listener: socket.socket,
        offline: OfflineStore | None,
        started: float,
        engine_module: str,
    ) -> None:
        self._config = config
        self._engine_config = engine
        self._checkpoint = checkpoint
        self._listener = listener
        self._offline = offline
        self._started = started
        self._engine_module = engine_module
        self._status = 0

    async def run(self) -> int:
        """The exit status. Raises CheckpointError."""
        shorten_time_slice()  # between a token and its client, every wait for a turn shows
        self._stop = asyncio.Event()
        self._services = self._make_services()
        app = create_app(self._services, self._on_engine_settled)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
        _say(f"loading {self._config.served_model_names[0]} from {self._checkpoint.directory}")
        await runner.setup()
        try:
            await web.SockSite(runner, self._listener, backlog=_BACKLOG).start()
            self._listen_to_signals()
            await self._stop.wait()
            if self._services.open:
                _say(f"finishing {len(self._services.open)} open requests; once more to abort them")
        finally:
            await runner.cleanup()
        return self._status

    def _make_services(self) -> Services:
        checkpoint = self._checkpoint
        tokenizer = Tokenizer.load(checkpoint)
        eos = tokenizer.token_id(checkpoint.special_tokens.get("eos_token", ""))
        stop_token_ids = dict.fromkeys([*checkpoint.eos_token_ids, *([] if eos is None else [eos])])
        template = checkpoint.chat_template
        return Services(
            config=self._config,
            engine=SupervisedEngine(self._make_engine, RestartPolicy(self._config.max_engine_restarts)),
            tokenizer=tokenizer,
            template=ChatTemplate(template, checkpoint.special_tokens) if template else None,
            stop_token_ids=tuple(stop_token_ids),
            sampling=checkpoint.sampling,
            offline=self._offline,
        )

    def _make_engine(self, num_restarts: int) -> LocalEngine:
        config = self._engine_config
        if num_restarts and config.decision_record is not None:  # each engine writes a record of its own
            config = msgspec.structs.replace(config, decision_record=f"{config.decision_record}.{num_restarts}")
        return LocalEngine(config, self._engine_module)

    def _on_engine_settled(self) -> None:
        engine = self._services.engine
        if engine.is_alive:
            gc.collect()
            gc.freeze()  # what lives until the end need not be looked at again and again, while tokens wait
            self._greet()
        else:
            self._status = _complain(engine.death or "the engine failed", _FAILED)
            self._stop.set()

    def _greet(self) -> None:
        info, config = self._services.engine.info, self._config
        address = self._listener.getsockname()
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
        url = f"http://[{host}]:{address[1]}" if ":" in host else f"http://{host}:{address[1]}"
        key = " -H 'authorization: Bearer KEY'" if config.api_keys else ""
        _say(
            f"ready after {time.monotonic() - self._started:.1f} s: {info.dtype} on {info.device}, "
            f"context {info.max_model_len} tokens"
        )
        _say(f"chat in a browser: {url}/   or in a terminal: hocket chat --url {url}")
        _say(
            f"""try: curl {url}/v1/chat/completions -H 'content-type: application/json'{key} -d '{{"model": """
            f""""{config.served_model_names[0]}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'"""
        )
        if config.is_exposed and not config.api_keys:
            _say("warning: other machines can reach this server, and no API key is set (--api-key)")

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            return
        error = UnavailableError("The server is shutting down.", code="shutting_down")
        for generation in self._services.open:
            generation.fail(error)


def _configure_logging() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    access = logging.getLogger("hocket.access")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.addHandler(handler)
    access.propagate = False


def _say(message: str) -> None:
    print(f"hocket: {message}", file=sys.stderr, flush=True)


def _complain(message: str, status: int) -> int:
    print(f"hocket serve: {message}", file=sys.stderr, flush=True)
    return status
