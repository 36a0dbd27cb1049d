"""`python -m worker`, `python -m vllm_engine`: how every engine process begins and ends.

It reads its EngineConfig as JSON, binds its endpoint, then loads the rest.
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

import msgspec

from schedcore.api.config import EngineConfig
from schedcore.serving.gateway_link import GatewayLink

Serve = Callable[[EngineConfig, GatewayLink, float], int]


def run_engine(package: str, load_serve: Callable[[], Serve]) -> int:
    """Exit status: 0 stopped, 1 failed, 2 wrong arguments or configuration.

    load_serve: imports what takes long, once the endpoint is bound; what it returns serves until told to stop. It gets
    time.monotonic() of the process's start.
    """
    started = time.monotonic()
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description="An engine process of hocket.")
    parser.add_argument("--endpoint", required=True, help="where to listen, such as ipc:///run/hocket/engine")
    parser.add_argument("--config", help="EngineConfig as JSON; read from standard input if absent")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the gateway, which drains before it stops the engine
    try:
        config = msgspec.json.decode(arguments.config or sys.stdin.buffer.read(), type=EngineConfig)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        logging.getLogger(package).error("the configuration is wrong: %s", error)
        return 2
    parent = os.getppid()
    link = GatewayLink(arguments.endpoint)
    try:
        return load_serve()(config, link, started)
    finally:
        link.close()
        if os.getppid() != parent:  # a gateway that was killed leaves the socket's folder to its engine
            with contextlib.suppress(OSError):  # it holds something else
                link.path.parent.rmdir()
