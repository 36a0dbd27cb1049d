"""The engine's end of the line: gateways connect, messages come in and go out. See schedcore/api/wire.py."""

from __future__ import annotations

import contextlib
import itertools
import logging
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from schedcore.api import wire
from schedcore.api.frame_socket import SCHEME, FrameError, FrameSocket, listen
from schedcore.serving.network_door import NetworkDoor, NetworkOptions

logger = logging.getLogger(__name__)

FAREWELL_MS = 1000  # that a gateway may take to say Hello to an engine that could not start
LINGER_SECONDS = 2.0  # that unsent messages may delay the exit
_READABLE, _WRITABLE = select.EPOLLIN, select.EPOLLOUT


class GatewayLink:
    """Not thread-safe, no threads of its own. A gateway is known by a name that its connection gets here."""

    def __init__(self, endpoint: str, network: NetworkOptions | None = None) -> None:
        """Binds; raises OSError if it cannot. network: where other machines may connect, too."""
        self.network = network
        self._listener = listen(endpoint)
        self._alone_since = time.monotonic()
        self.path = Path(endpoint.removeprefix(SCHEME))  # of the socket; removed at the end
        self._connections: dict[bytes, FrameSocket] = {}
        self._gateway_of: dict[int, bytes] = {}  # by file descriptor
        self._names = itertools.count(1)
        self._wakeup, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup, self._wakeup_writer):
            end.setblocking(False)
        self._poller = select.epoll()
        self._poller.register(self._listener, _READABLE)
        self._poller.register(self._wakeup, _READABLE)
        try:
            self._door = None if network is None else NetworkDoor(network, self._poller)
        except BaseException:
            self._close_own()
            raise

    @property
    def network_endpoint(self) -> str:
        """`tcp://host:port` where other machines reach the engine; empty: they do not."""
        return "" if self._door is None else self._door.endpoint

    def alone_seconds(self) -> float:
        """For how long nobody has been connected; asked now and then, it is as exact as that."""
        now = time.monotonic()
        if self._connections:
            self._alone_since = now
        return now - self._alone_since

    @property
    def wakeup_fileno(self) -> int:
        """A byte written here ends wait(); made for signal.set_wakeup_fd()."""
        return self._wakeup_writer.fileno()

    def wake(self) -> None:
        """Ends wait(), from any thread; nothing happens once this is closed."""
        with contextlib.suppress(OSError):  # it is full: a wake-up is under way
            self._wakeup_writer.send(b"\0")

    def wait(self, timeout_ms: int) -> bool:
        """Blocks until receive() has something to do (True), or the time is over or a wake-up came (False)."""
        ready = {descriptor for descriptor, _ in self._poller.poll(timeout_ms / 1e3)}
        if self._wakeup.fileno() in ready:
            self._wakeup.recv(4096)
            ready.remove(self._wakeup.fileno())
        return bool(ready)

    def receive(self) -> Iterator[tuple[bytes, wire.ToEngine | None]]:
        """(gateway, message) for everything that has arrived; no message: that gateway is gone.

        A gateway that sends what is no message is told so and hung up on: it may wait for an answer to that.
        """
        for descriptor, events in self._poller.poll(0):
            if descriptor in self._gateway_of:
                yield from self._serve(self._gateway_of[descriptor], events)
            elif descriptor == self._listener.fileno():
                yield from self._accept()
            elif (connection := self._come_in(descriptor)) is not None:
                yield from self._welcome(connection)

    def send(self, gateway: bytes, message: wire.ToGateway) -> bool:
        """False if the gateway is gone."""
        connection = self._connections.get(gateway)
        if connection is None:
            return False
        try:
            connection.send(wire.encode(message))
        except OSError:
            self._drop(gateway)
            return False
        if connection.has_unsent:
            self._poller.modify(connection, _READABLE | _WRITABLE)
        return True

    def say_farewell(self, message: str) -> None:
        """To whoever has said Hello, or does so soon, of an engine that could not start."""
        self.wait(FAREWELL_MS)
        for gateway in {gateway for gateway, received in self.receive() if received is not None}:
            self.send(gateway, wire.Fatal(message))

    def close(self) -> None:
        """Waits for what is unsent, at most LINGER_SECONDS."""
        deadline = time.monotonic() + LINGER_SECONDS
        while any(c.has_unsent for c in self._connections.values()) and (left := deadline - time.monotonic()) > 0:
            self._poller.poll(left)
            for gateway in list(self._connections):
                self._flush(gateway)
        for connection in self._connections.values():
            connection.close()
        if self._door is not None:
            self._door.close()
        self._close_own()

    def _close_own(self) -> None:
        for resource in (self._poller, self._listener, self._wakeup, self._wakeup_writer):
            resource.close()
        self.path.unlink(missing_ok=True)

    def _accept(self) -> Iterator[tuple[bytes, wire.ToEngine | None]]:
        try:
            connection = FrameSocket(self._listener.accept()[0])
        except BlockingIOError:  # whoever wanted to connect has given up
            return
        yield from self._welcome(connection)

    def _come_in(self, descriptor: int) -> FrameSocket | None:
        """From another machine."""
        if self._door is None or not self._door.serves(descriptor):
            return None
        return self._door.serve(descriptor)

    def _welcome(self, connection: FrameSocket) -> Iterator[tuple[bytes, wire.ToEngine | None]]:
        """With what the gateway has said by now."""
        gateway = b"gateway-%d" % next(self._names)
        self._connections[gateway] = connection
        self._gateway_of[connection.fileno()] = gateway
        self._poller.register(connection, _READABLE)
        yield from self._serve(gateway, _READABLE)

    def _serve(self, gateway: bytes, events: int) -> Iterator[tuple[bytes, wire.ToEngine | None]]:
        if events & _WRITABLE:
            self._flush(gateway)
        if not events & ~_WRITABLE or gateway not in self._connections:
            return
        try:
            frames = self._connections[gateway].receive()
        except FrameError as error:
            yield self._refuse(gateway, error)
            return
        except OSError as error:
            logger.debug("%s: %s", gateway.decode(), error)
            self._drop(gateway)
            yield gateway, None
            return
        for frame in frames:
            try:
                message = wire.decode_to_engine(frame)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                yield self._refuse(gateway, error)
                return
            yield gateway, message

    def _refuse(self, gateway: bytes, error: Exception) -> tuple[bytes, None]:
        logger.error("%s sent what is no message, and is hung up on: %s", gateway.decode(), error)
        if self.send(gateway, wire.Fatal(f"The engine cannot read what the gateway sent: {error}.")):
            self._drop(gateway)
        return gateway, None

    def _flush(self, gateway: bytes) -> None:
        connection = self._connections[gateway]
        try:
            connection.flush()
        except OSError:
            self._drop(gateway)
            return
        if not connection.has_unsent:
            self._poller.modify(connection, _READABLE)

    def _drop(self, gateway: bytes) -> None:
        connection = self._connections.pop(gateway)
        del self._gateway_of[connection.fileno()]
        self._poller.unregister(connection)
        connection.close()
