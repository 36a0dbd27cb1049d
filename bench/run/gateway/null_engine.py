"""An engine that computes nothing, and hardly any time: every open request gets one token per step.

    python -m bench.run.gateway.null_engine CHECKPOINT --port 8000 ...     # `hocket serve` over it; the same arguments

NULL_ENGINE_TOKENS_PER_SECOND is what it offers to all streams together. Steps come at fixed times: a gateway that
cannot follow finds several steps waiting when it looks again, and passes them on together.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests"))

from fakes.fake_engine import INFO  # noqa: E402 (a folder, no package)
from gateway.cli import serve  # noqa: E402
from schedcore.api import wire  # noqa: E402
from schedcore.api.config import EngineConfig  # noqa: E402
from schedcore.api.time_slice import shorten_time_slice  # noqa: E402
from schedcore.api.types import EngineRequest, FinishReason, SessionState, TokenDelta  # noqa: E402
from schedcore.serving.gateway_link import GatewayLink  # noqa: E402

TOKEN = ord("a")
MAX_PAUSE_SECONDS = 0.1


class NullEngine:
    def __init__(self, link: GatewayLink, tokens_per_second: float) -> None:
        self._link = link
        self._tokens_per_second = tokens_per_second
        self._gateway = b""
        self._num_left: dict[int, int] = {}  # tokens, by request
        self._deltas: dict[int, TokenDelta] = {}  # the same again and again, but the last
        self._is_stopped = False

    def run(self) -> None:
        due = time.monotonic()
        while not self._is_stopped:
            self._link.wait(self._milliseconds_until(due))
            self._take_in()
            if not self._num_left:
                due = time.monotonic()
            elif time.monotonic() >= due:
                due += len(self._num_left) / self._tokens_per_second
                self._step()

    def _milliseconds_until(self, due: float) -> int:
        if not self._num_left:
            return int(MAX_PAUSE_SECONDS * 1e3)
        return max(0, int((due - time.monotonic()) * 1e3))

    def _take_in(self) -> None:
        for gateway, message in self._link.receive():
            self._gateway = gateway
            match message:
                case wire.Hello():
                    self._link.send(gateway, wire.Ready(INFO))
                case wire.Submit(request):
                    self._add(request)
                case wire.Abort(request_id):
                    self._num_left.pop(request_id, None)
                    self._deltas.pop(request_id, None)
                case wire.Advise(advisory):
                    self._link.send(gateway, wire.Session(SessionState(advisory.request_id, is_known=False)))
                case wire.Ping():
                    self._link.send(gateway, wire.Pong())
                case wire.Shutdown() | None:
                    self._is_stopped = True

    def _add(self, request: EngineRequest) -> None:
        self._num_left[request.request_id] = request.max_tokens
        self._deltas[request.request_id] = TokenDelta(request.request_id, [TOKEN])

    def _step(self) -> None:
        for request_id, num_left in list(self._num_left.items()):
            self._num_left[request_id] = num_left - 1
            if num_left == 1:
                self._deltas[request_id] = TokenDelta(request_id, [TOKEN], FinishReason.LENGTH)
        self._link.send(self._gateway, wire.Deltas(list(self._deltas.values())))
        for request_id in [i for i, num_left in self._num_left.items() if not num_left]:
            del self._num_left[request_id], self._deltas[request_id]


def main() -> int:
    if "--endpoint" not in sys.argv:
        parser = argparse.ArgumentParser(prog="null_engine.py")
        serve.add_arguments(parser)
        return serve.run(parser.parse_args(), engine_module="bench.run.gateway.null_engine")
    shorten_time_slice()  # as if it had a core of its own: steps come when they are due
    msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)
    link = GatewayLink(sys.argv[sys.argv.index("--endpoint") + 1])
    NullEngine(link, float(os.environ.get("NULL_ENGINE_TOKENS_PER_SECOND", "50000"))).run()
    link.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
