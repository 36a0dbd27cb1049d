"""The engine's end of the line: a ZeroMQ ROUTER, messages in and out. See schedcore/wire.py."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterator

import msgspec
import zmq

from schedcore import wire

logger = logging.getLogger(__name__)

LINGER_MS = 2000  # that unsent messages may delay the exit


class GatewayLink:
    """Not thread-safe. A gateway is known by the identity that ROUTER gives its connection."""

    def __init__(self, endpoint: str) -> None:
        """Binds; raises zmq.ZMQError if it cannot."""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a gateway that is gone is an error we see
        self._socket.setsockopt(zmq.SNDHWM, 0)  # losing a delta would break a stream; requests are bounded elsewhere
        self._socket.setsockopt(zmq.RCVHWM, 0)
        try:
            self._socket.bind(endpoint)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._wakeup, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup, self._wakeup_writer):
            end.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wakeup, zmq.POLLIN)

    @property
    def wakeup_fileno(self) -> int:
        """A byte written here ends wait(); made for signal.set_wakeup_fd()."""
        return self._wakeup_writer.fileno()

    def wait(self, timeout_ms: int) -> bool:
        """Blocks until a message is there (True), or the time is over or a wake-up came (False)."""
        ready = dict(self._poller.poll(timeout_ms))
        if self._wakeup.fileno() in ready:
            self._wakeup.recv(4096)
        return self._socket in ready

    def receive(self) -> Iterator[tuple[bytes, wire.ToEngine]]:
        """(gateway, message) for everything that has arrived. Frames that are no messages are logged and dropped."""
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            gateway, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            try:
                if len(frames) != 1:
                    raise msgspec.DecodeError(f"{len(frames)} frames instead of one")
                message = wire.decode_to_engine(frames[0])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                logger.warning("a frame from gateway %s was ignored: %s", gateway.hex(), error)
            else:
                yield gateway, message

    def send(self, gateway: bytes, message: wire.ToGateway) -> bool:
        """False if the gateway is gone."""
        try:
            self._socket.send_multipart((gateway, wire.encode(message)), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (errno.EHOSTUNREACH, errno.EAGAIN):
                raise
            return False
        return True

    def close(self) -> None:
        """Waits for what is unsent, at most LINGER_MS."""
        self._context.destroy(linger=LINGER_MS)
        self._wakeup.close()
        self._wakeup_writer.close()
