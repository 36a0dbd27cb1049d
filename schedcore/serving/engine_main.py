"""`python -m worker`, `python -m vllm_engine`: how every engine process begins and ends.

It binds its endpoint, reads its EngineConfig as JSON, then loads the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from schedcore.api.cluster_tls import NODE, ClusterTls, ClusterTlsError
from schedcore.api.config import EngineConfig
from schedcore.peers.block_transport import BLOCK_TRANSPORTS, TCP
from schedcore.serving.gateway_link import GatewayLink
from schedcore.serving.network_door import NetworkOptions

IsOrphaned = Callable[[], bool]
Serve = Callable[[EngineConfig, GatewayLink, float, IsOrphaned], int]


def run_engine(package: str, load_serve: Callable[[], Serve]) -> int:
    """Exit status: 0 stopped, 1 failed, 2 wrong arguments or configuration.

    load_serve: imports what takes long, once the endpoint is bound; what it returns serves until told to stop. It gets
    time.monotonic() of the process's start, and who says whether its gateway died.
    """
    started = time.monotonic()
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description="An engine process of hocket.")
    parser.add_argument("--endpoint", required=True, help="where to listen, such as ipc:///run/hocket/engine")
    parser.add_argument("--config", help="EngineConfig as JSON; read from standard input if absent")
    parser.add_argument(
        "--parent", type=int, default=os.getppid(), help="process with which it ends; its own if absent"
    )
    parser.add_argument("--listen", metavar="tcp://HOST:PORT", help="where gateways on other machines connect")
    parser.add_argument("--listen-blocks", metavar="tcp://HOST:PORT", help="where other engines get cached blocks")
    parser.add_argument("--block-transport", choices=BLOCK_TRANSPORTS, default=TCP, help="by which blocks come")
    parser.add_argument("--cluster-dir", type=Path, help="the cluster's certificates, for --listen; absent: plain TCP")
    parser.add_argument("--lease-seconds", type=float, help="alone, before it exits; absent: when its parent is gone")
    arguments = parser.parse_args()
    parent: int = arguments.parent
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the gateway, which drains before it stops the engine

    try:
        link = GatewayLink(arguments.endpoint, _network(arguments))
    except (ClusterTlsError, OSError, ValueError) as error:
        logging.getLogger(package).error("the engine cannot listen: %s", error)
        return 1
    lease: float | None = arguments.lease_seconds

    def is_orphaned() -> bool:
        return os.getppid() != parent if lease is None else link.alone_seconds() > lease

    try:
        config = _config(arguments.config or sys.stdin.buffer.read(), package)
        if config is None:
            return 2
        return 1 if is_orphaned() else load_serve()(config, link, started, is_orphaned)
    finally:
        link.close()
        if lease is None and is_orphaned():  # a gateway that was killed leaves the socket's folder to its engine
            with contextlib.suppress(OSError):  # it holds something else
                link.path.parent.rmdir()


def _config(text: str | bytes, package: str) -> EngineConfig | None:
    try:
        return msgspec.json.decode(text, type=EngineConfig)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        logging.getLogger(package).error("the configuration is wrong: %s", error)
        return None


def _network(arguments: argparse.Namespace) -> NetworkOptions | None:
    """Raises ClusterTlsError."""
    if arguments.listen is None:
        return None
    tls = None if arguments.cluster_dir is None else ClusterTls(arguments.cluster_dir, NODE)
    return NetworkOptions(arguments.listen, tls, arguments.listen_blocks, arguments.block_transport)
