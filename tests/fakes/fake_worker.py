"""`python -m fakes.fake_worker --endpoint ipc://...`: an engine process without a model, for the gateway's tests.

Speaks the same protocol as `python -m worker`. FAKE_WORKER_MODE makes it fail: `exit` before it is ready, `fatal`
(says why first), `garbage` (once ready), `deaf` (to advisories). FAKE_WORKER_STEP_MS is the pace.
"""

from __future__ import annotations

import argparse
import os
import sys

import msgspec
import zmq

from fakes.fake_engine import INFO, FakeSteps
from fakes.fake_sessions import FakeSessions
from schedcore import wire
from schedcore.config import EngineConfig
from schedcore.types import TokenDelta

STEPS_BETWEEN_STATS = 50


class FakeWorker:
    def __init__(self, endpoint: str, mode: str, step_ms: int) -> None:
        self._socket = zmq.Context().socket(zmq.ROUTER)
        self._socket.bind(endpoint)
        self._mode = mode
        self._step_ms = step_ms
        self._steps = FakeSteps()
        self._sessions = FakeSessions()
        self._gateway = b""
        self._is_stopped = False
        self._parent = os.getppid()

    def run(self) -> None:
        while not self._is_stopped and os.getppid() == self._parent:
            if self._socket.poll(self._step_ms if self._steps.num_open else 100):
                self._gateway, frame = self._socket.recv_multipart()
                self._on_message(wire.decode_to_engine(frame))
            elif self._steps.num_open:
                self._say(self._steps.step())
                if not self._steps.num_open or self._steps.num_steps % STEPS_BETWEEN_STATS == 0:
                    self._send(wire.encode(wire.Stats(self._steps.stats())))

    def _on_message(self, message: wire.ToEngine) -> None:
        match message:
            case wire.Hello():
                self._on_hello()
            case wire.Submit(request):
                self._steps.add(request)
                self._sessions.note(request)
            case wire.Advise(advisory) if self._mode != "deaf":
                self._send(wire.encode(wire.Session(self._sessions.advise(advisory))))
            case wire.Abort(request_id):
                self._say(self._steps.abort(request_id))
            case wire.Shutdown():
                self._say(self._steps.abort_all())
                self._is_stopped = True

    def _on_hello(self) -> None:
        if self._mode == "fatal":
            self._send(wire.encode(wire.Fatal("There is no such device.")))
            self._is_stopped = True
            return
        self._send(wire.encode(wire.Ready(INFO)))
        if self._mode == "garbage":
            self._send(b"\xc1")

    def _say(self, deltas: list[TokenDelta]) -> None:
        self._send(wire.encode(wire.Deltas(deltas)))

    def _send(self, frame: bytes) -> None:
        self._socket.send_multipart([self._gateway, frame])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    endpoint = parser.parse_args().endpoint
    msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)
    mode = os.environ.get("FAKE_WORKER_MODE", "")
    if mode == "exit":
        return 3
    FakeWorker(endpoint, mode, int(os.environ.get("FAKE_WORKER_STEP_MS", "1"))).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
