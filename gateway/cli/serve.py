"""`hocket serve`: checks what can be checked at once, then runs the application until a signal."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gateway.base.console import complain, say
from gateway.cli.options import OptionsError, add_options, engine_config, gateway_config, read_file
from gateway.cli.parser import Parser, examples
from gateway.cli.vllm_flags import notes
from gateway.config import environment
from gateway.config.config import ENGINES, GatewayConfig
from gateway.config.engine_urls import is_urls
from gateway.engine.engine_process import EngineProcess
from gateway.http.listener import ListenError, listen, tls_context
from gateway.model.checkpoint import Checkpoint, CheckpointError
from schedcore.api.config import VLLM_POLICY, EngineConfig
from schedcore.api.model_path import DEMO, GGUF_SUFFIX, ModelNotFoundError, resolve_model
from schedcore.api.setting import settings

_FAILED, _MISUSED = 1, 2  # exit statuses
EXAMPLES = examples(
    "hocket serve                                    # the demo model, on port 8000",
    "hocket serve /models/qwen3-0.6b --host 0.0.0.0 --api-key SECRET --max-model-len 8k",
    after="Flags of `vllm serve` that are not here are taken where they ask for nothing: docs/vllm_flags.md",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_options(parser)


def run(args: argparse.Namespace, engine_module: str | None = None) -> int:
    """The exit status. `engine_module` is what `python -m` runs as the engine; None: as is configured."""
    started = time.monotonic()
    try:
        options = _options(args)
        for note in notes(options):
            say(note)
        model = options.get("model", DEMO)
        folder = resolve_model(model, has_weights=not _computes_elsewhere(options))
        config = gateway_config(
            options, _name(model, folder), environment.api_keys(), environment.typing_webhook_secrets()
        )
        engine = engine_config(options, folder, config.served_model_names[0])
        _check_engine(config, engine, options)
        config = _with_adapters(config, engine)
        template = options.get("chat_template")
        checkpoint = Checkpoint.read(folder, Path(template) if template else None)
        tls, listener = tls_context(config), listen(config)
    except OptionsError as error:
        return complain(str(error), _MISUSED)
    except (CheckpointError, ModelNotFoundError, ListenError) as error:
        return complain(str(error), _FAILED)
    with listener:
        module = engine_module or ENGINES.get(config.engine, "")
        _exit_at_signals()
        launched = _launch(config, engine, module)
        try:
            from gateway.server import run_server  # takes as long to import as an engine: meanwhile that does so, too

            return run_server(config, engine, checkpoint, listener, tls, started, module, launched)
        finally:
            if launched is not None:
                launched.discard()


def _exit_at_signals() -> None:
    """Until the server listens to them itself: an engine on its way is not left behind, and nobody sees a traceback."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)


def _computes_elsewhere(options: Mapping[str, Any]) -> bool:
    return is_urls(options.get("engine", "")) or "fleet_listen" in options


def _launch(config: GatewayConfig, engine: EngineConfig, module: str) -> EngineProcess | None:
    if config.engine_urls or config.fleet_listen is not None:
        return None
    try:
        return EngineProcess(engine, module, config.vllm_python or sys.executable)
    except OSError:
        return None  # the server tries again, and says why it fails


def _options(args: argparse.Namespace) -> dict[str, Any]:
    given = vars(args)
    if "config" not in given:
        return given
    parser = Parser(prog="hocket serve")
    add_options(parser)
    return read_file(Path(given["config"]), parser) | given


def _check_engine(config: GatewayConfig, engine: EngineConfig, options: Mapping[str, Any]) -> None:
    """Raises OptionsError for what only another engine has."""
    if config.engine_urls or config.fleet_listen is not None:
        where = "those at --engine" if config.engine_urls else "nodes"
        for setting in settings(EngineConfig):
            if setting.flag is not None and setting.destination in options:
                flag = setting.destination.replace("_", "-")
                raise OptionsError(f"--{flag} is for an engine of this server's; {where} have their own")
        return
    if config.engine == "vllm":
        if Path(options.get("model", DEMO)).suffix == GGUF_SUFFIX:
            raise OptionsError("GGUF files are for hocket's own engine: --engine vllm needs a directory or a hub id")
        if config.vllm_python is not None and shutil.which(config.vllm_python) is None:
            raise OptionsError(f"--vllm-python: {config.vllm_python} is no program")
        return
    if engine.policy == VLLM_POLICY:
        raise OptionsError(f"--scheduling-policy {VLLM_POLICY} needs --engine vllm")
    if engine.vllm_options:
        raise OptionsError("--vllm-option needs --engine vllm")
    if engine.lora_modules:
        raise OptionsError("--lora-modules needs --engine vllm: merge the adapter into its model, or serve it there")


def _with_adapters(config: GatewayConfig, engine: EngineConfig) -> GatewayConfig:
    """An adapter is a model to whoever asks. Raises OptionsError."""
    names = (*config.served_model_names, *engine.adapters())
    if len(set(names)) < len(names):
        raise OptionsError("--lora-modules: an adapter has the model's own name")
    return msgspec.structs.replace(config, served_model_names=names)


def _name(model: str, folder: Path) -> str:
    """A hub id and `demo` name themselves, a directory and a file have names."""
    path = Path(model).expanduser()
    if path.is_dir():
        return folder.name
    return path.stem if path.is_file() else model
