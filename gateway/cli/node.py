"""`hocket node`: an engine for the gateways of a fleet, kept running on this machine."""

from __future__ import annotations

import argparse
import logging
import socket
import sys
from pathlib import Path
from typing import Any

import uvloop

from gateway.cli.options import OptionsError, add_flag, engine_config, given_fields, split_names
from gateway.cli.parser import examples
from gateway.config.node_config import NodeConfig
from gateway.node.node_manager import NodeManager, RunDirInUseError
from schedcore.api.cluster_tls import ClusterTlsError
from schedcore.api.config import EngineConfig
from schedcore.api.model_path import DEMO, ModelNotFoundError, model_fingerprint, resolve_model
from schedcore.api.setting import settings

_FAILED, _MISUSED = 1, 2  # exit statuses
EXAMPLES = examples(
    "hocket node --gateways 127.0.0.1:7000                       # the demo model, for a gateway on this machine",
    "hocket node --gateways gw1:7000,gw2:7000 --model /models/qwen3-8b --listen 0.0.0.0:7100 --cluster-dir /etc/hocket",
    after="SIGTERM drains: open requests may end. SIGHUP leaves the engine to the next manager, as a crash does.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.argument_default = argparse.SUPPRESS
    parser.add_argument("--model", metavar="MODEL", help="a Hugging Face directory or hub id (default: demo)")
    group = parser.add_argument_group("node")
    for setting in settings(NodeConfig):
        add_flag(group, setting)
    for title in ("model", "engine"):
        group = parser.add_argument_group(title)
        for setting in settings(EngineConfig):
            if setting.flag is not None and setting.flag.group == title:
                add_flag(group, setting)


def run(args: argparse.Namespace) -> int:
    """The exit status: 3 where another node has the name."""
    options = vars(args)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = _config(options)
        model = options.get("model", DEMO)
        folder = resolve_model(model)
        engine = engine_config(options, folder, folder.name if Path(model).expanduser().is_dir() else model)
        manager = NodeManager(config, engine, model_fingerprint(folder))
    except OptionsError as error:
        return _complain(error, _MISUSED)
    except (ModelNotFoundError, ClusterTlsError) as error:
        return _complain(error, _FAILED)
    try:
        return uvloop.run(manager.run())
    except (RunDirInUseError, OSError) as error:
        return _complain(error, _FAILED)


def _config(options: dict[str, Any]) -> NodeConfig:
    """Raises OptionsError."""
    fields = given_fields(options, NodeConfig)
    fields["gateways"] = split_names(fields.get("gateways", ()))
    fields.setdefault("name", socket.gethostname())
    try:
        return NodeConfig(**fields)
    except ValueError as error:
        raise OptionsError(str(error)) from None


def _complain(error: Exception, status: int) -> int:
    print(f"hocket node: {error}", file=sys.stderr)
    return status
