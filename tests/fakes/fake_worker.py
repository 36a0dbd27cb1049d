"""`python -m fakes.fake_worker --endpoint ipc://...`: an engine process without a model, for the gateway's tests.

Speaks the same protocol as `python -m worker`. FAKE_WORKER_MODE makes it fail: `exit` before it is ready, `fatal`
(says why first), `garbage` (once ready), `deaf` (to advisories), `mortal` (of a prompt with "poison" in it). What
FAKE_WORKER_STEP_MS says is the pace.
"""

from __future__ import annotations

import argparse
import os
import sys

import msgspec

from fakes.fake_engine import INFO, FakeSteps
from fakes.fake_sessions import FakeSessions
from schedcore.api import wire
from schedcore.api.config import EngineConfig
from schedcore.api.types import CacheReset, TokenDelta
from schedcore.serving.gateway_link import GatewayLink

STEPS_BETWEEN_STATS = 50
POISON = b"poison"


class FakeWorker:
    def __init__(self, endpoint: str, mode: str, step_ms: int) -> None:
        self._link = GatewayLink(endpoint)
        self._mode = mode
        self._step_ms = step_ms
        self._steps = FakeSteps()
        self._sessions = FakeSessions()
        self._gateway = b""
        self._is_stopped = False
        self._parent = os.getppid()

    def run(self) -> None:
        while not self._is_stopped and os.getppid() == self._parent:
            if self._link.wait(self._step_ms if self._steps.num_open else 100):
                for gateway, message in self._link.receive():
                    if message is not None:
                        self._gateway = gateway
                        self._on_message(message)
            elif self._steps.num_open:
                self._die_of_poison()
                self._say(self._steps.step())
                if not self._steps.num_open or self._steps.num_steps % STEPS_BETWEEN_STATS == 0:
                    self._link.send(self._gateway, wire.Stats(self._steps.stats()))
        self._link.close()

    def _die_of_poison(self) -> None:
        if self._mode == "mortal" and any(POISON in bytes(t for t in p if t < 256) for p in self._steps.prompts):
            os._exit(9)

    def _on_message(self, message: wire.ToEngine) -> None:
        match message:
            case wire.Hello():
                self._on_hello()
            case wire.Submit(request):
                self._steps.add(request)
                self._sessions.note(request)
            case wire.Advise(advisory) if self._mode != "deaf":
                self._link.send(self._gateway, wire.Session(self._sessions.advise(advisory)))
            case wire.ResetCache(request_id):
                self._link.send(self._gateway, wire.Reset(CacheReset(request_id, 3)))
            case wire.Abort(request_id):
                self._say(self._steps.abort(request_id))
            case wire.Ping():
                self._link.send(self._gateway, wire.Pong())
            case wire.Shutdown():
                self._say(self._steps.abort_all())
                self._is_stopped = True

    def _on_hello(self) -> None:
        if self._mode == "fatal":
            self._link.send(self._gateway, wire.Fatal("There is no such device."))
            self._is_stopped = True
            return
        self._link.send(self._gateway, wire.Ready(INFO))
        if self._mode == "garbage":
            self._link.send(self._gateway, wire.Shutdown())  # type: ignore[arg-type]  # not for gateways

    def _say(self, deltas: list[TokenDelta]) -> None:
        self._link.send(self._gateway, wire.Deltas(deltas))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--parent", type=int)
    endpoint = parser.parse_args().endpoint
    msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)
    mode = os.environ.get("FAKE_WORKER_MODE", "")
    if mode == "exit":
        return 3
    FakeWorker(endpoint, mode, int(os.environ.get("FAKE_WORKER_STEP_MS", "1"))).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
