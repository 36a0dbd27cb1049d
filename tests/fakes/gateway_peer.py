"""The gateway's end of the line, blocking: sends messages, waits for answers with a deadline."""

from __future__ import annotations

import contextlib
import select
import time
from collections import defaultdict, deque
from collections.abc import Callable
from types import TracebackType

from schedcore.api import wire
from schedcore.api.frame_socket import FrameSocket, connect
from schedcore.api.types import FinishReason, TokenDelta

DEADLINE_SECONDS = 120.0
RETRY_SECONDS = 0.01


class GatewayPeer:
    def __init__(self, endpoint: str) -> None:
        self._socket = _connect(endpoint)
        self._frames: deque[bytes] = deque()
        self.received: list[wire.ToGateway] = []
        self.deltas: defaultdict[int, list[TokenDelta]] = defaultdict(list)

    def __enter__(self) -> GatewayPeer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, *messages: wire.ToEngine) -> None:
        self.send_frames(*map(wire.encode, messages))

    def send_frames(self, *frames: bytes) -> None:
        for frame in frames:
            self._socket.send(frame)
        while self._socket.has_unsent:
            select.select([], [self._socket], [], DEADLINE_SECONDS)
            self._socket.flush()

    def wait_for(self, condition: Callable[[wire.ToGateway], bool]) -> wire.ToGateway:
        """The next message that fulfils the condition; what comes before it is kept in `received`."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (frame := self._next_frame(deadline)) is not None:
            message = wire.decode_to_gateway(frame)
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

    def _next_frame(self, deadline: float) -> bytes | None:
        """None once the deadline is over."""
        while not self._frames:
            if not select.select([self._socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            self._frames.extend(self._socket.receive())
        return self._frames.popleft()


def _connect(endpoint: str) -> FrameSocket:
    """The engine may still be about to listen."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            return connect(endpoint)
        select.select([], [], [], RETRY_SECONDS)
    return connect(endpoint)
