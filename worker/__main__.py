"""`python -m worker`: the engine process. Reads its EngineConfig as JSON, binds its endpoint, then loads the rest."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time

import msgspec

from schedcore.config import EngineConfig
from worker.gateway_link import GatewayLink

logger = logging.getLogger("worker")


def main() -> int:
    """Exit status: 0 stopped, 1 failed, 2 wrong arguments or configuration."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m worker", description="The engine process of hocket.")
    parser.add_argument("--endpoint", required=True, help="where to listen, such as ipc:///run/hocket/engine")
    parser.add_argument("--config", help="EngineConfig as JSON; read from standard input if absent")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the gateway, which drains before it stops the engine
    try:
        config = msgspec.json.decode(arguments.config or sys.stdin.buffer.read(), type=EngineConfig)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.error("the configuration is wrong: %s", error)
        return 2
    link = GatewayLink(arguments.endpoint)
    try:
        from worker.engine_process import serve  # torch takes longer to import than all before it

        return serve(config, link, started)
    finally:
        link.close()


if __name__ == "__main__":
    sys.exit(main())
