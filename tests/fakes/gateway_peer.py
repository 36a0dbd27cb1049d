"""The gateway's end of the line, blocking: sends messages, waits for answers with a deadline."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType

import zmq

from schedcore import wire
from schedcore.types import FinishReason, TokenDelta

DEADLINE_SECONDS = 30.0


class GatewayPeer:
    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)
        self.received: list[wire.ToGateway] = []
        self.deltas: defaultdict[int, list[TokenDelta]] = defaultdict(list)

    def __enter__(self) -> GatewayPeer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._context.destroy(linger=0)

    def send(self, *messages: wire.ToEngine) -> None:
        for message in messages:
            self._socket.send(wire.encode(message))

    def send_frames(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def wait_for(self, condition: Callable[[wire.ToGateway], bool]) -> wire.ToGateway:
        """The next message that fulfils the condition; what comes before it is kept in `received`."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self._socket.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            message = wire.decode_to_gateway(self._socket.recv())
            self.received.append(message)
            if isinstance(message, wire.Deltas):
                for delta in message.deltas:
                    self.deltas[delta.request_id].append(delta)
            if condition(message):
                return message
        raise AssertionError(f"no such message within {DEADLINE_SECONDS} s; received {self.received}")

    def wait_for_final(self, *request_ids: int) -> None:
        """Until each of the requests has had its final delta."""
        self.wait_for(lambda _: all(self.is_final(request_id) for request_id in request_ids))

    def is_final(self, request_id: int) -> bool:
        deltas = self.deltas[request_id]
        return bool(deltas) and deltas[-1].finish_reason != FinishReason.NONE

    def tokens(self, request_id: int) -> list[int]:
        return [token for delta in self.deltas[request_id] for token in delta.token_ids]
