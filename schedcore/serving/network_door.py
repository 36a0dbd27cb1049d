"""Where gateways on other machines come in: a TCP port, behind the cluster's TLS where there is any.

Whoever has not shown a certificate of a gateway has said nothing to the engine: not a byte of it is decoded, few may
try at a time, each for a few seconds only, and one line says that one address was refused.
"""

from __future__ import annotations

import logging
import select
import ssl
import time
from dataclasses import dataclass

from schedcore.api.cluster_tls import GATEWAY, NODE, ClusterTls, check_role
from schedcore.api.frame_socket import (
    MAX_NETWORK_FRAME_BYTES,
    FrameSocket,
    listen,
    network_address,
    network_endpoint,
    prepare_network,
)
from schedcore.api.tls_stream import TlsStream

HANDSHAKE_SECONDS = 5.0
MAX_HANDSHAKES = 64  # under way at a time; the oldest makes room
_MAX_REMEMBERED = 1024  # addresses that were refused and said so
_READABLE, _WRITABLE = select.EPOLLIN, select.EPOLLOUT

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Of an engine that other machines may reach."""

    endpoint: str  # tcp://host:port, port 0 for any free one
    tls: ClusterTls | None = None  # None: plain, for loopback and where the operator vouches for the network
    blocks: str | None = None  # tcp://host:port, where other engines get cached blocks; None: nowhere
    block_transport: str = "tcp"  # one of BLOCK_TRANSPORTS (schedcore/peers/block_transport.py)


@dataclass(slots=True)
class _Handshake:
    connection: TlsStream
    address: str
    deadline: float


class NetworkDoor:
    """Not thread-safe, never blocks. Registers with the poller whatever it waits for."""

    def __init__(self, options: NetworkOptions, poller: select.epoll) -> None:
        """Binds; raises OSError if it cannot."""
        self._listener = listen(options.endpoint)
        self._tls, self._poller = options.tls, poller
        self.endpoint = network_endpoint(network_address(options.endpoint)[0], self._listener.getsockname()[1])
        self._handshakes: dict[int, _Handshake] = {}  # by file descriptor, oldest first
        self._refused: set[str] = set()  # addresses
        poller.register(self._listener, _READABLE)

    def serves(self, descriptor: int) -> bool:
        return descriptor in self._handshakes or descriptor == self._listener.fileno()

    def serve(self, descriptor: int) -> FrameSocket | None:
        """What is ready there; a connection once somebody has come in by it."""
        if descriptor == self._listener.fileno():
            return self._accept()
        return self._shake(self._handshakes[descriptor])

    def close(self) -> None:
        for handshake in list(self._handshakes.values()):
            self._forget(handshake).close()
        self._listener.close()

    def _accept(self) -> FrameSocket | None:
        self._expire()
        try:
            connection, address = self._listener.accept()
        except OSError:  # whoever wanted to connect has given up
            return None
        try:
            prepare_network(connection)
            if self._tls is None:
                return FrameSocket(connection, MAX_NETWORK_FRAME_BYTES)
            stream = self._tls.accepted(connection)
        except OSError as error:
            connection.close()
            self._refuse(address[0], error)
            return None
        handshake = _Handshake(stream, address[0], time.monotonic() + HANDSHAKE_SECONDS)
        self._handshakes[stream.fileno()] = handshake
        self._poller.register(stream, _READABLE)
        return self._shake(handshake)

    def _shake(self, handshake: _Handshake) -> FrameSocket | None:
        try:
            handshake.connection.do_handshake()
            check_role(handshake.connection, (GATEWAY, NODE))
        except ssl.SSLWantReadError:
            self._poller.modify(handshake.connection, _READABLE)
            return None
        except ssl.SSLWantWriteError:
            self._poller.modify(handshake.connection, _WRITABLE)
            return None
        except OSError as error:
            self._forget(handshake).close()
            self._refuse(handshake.address, error)
            return None
        return FrameSocket(self._forget(handshake), MAX_NETWORK_FRAME_BYTES)

    def _expire(self) -> None:
        now = time.monotonic()
        for handshake in list(self._handshakes.values()):
            if handshake.deadline > now and len(self._handshakes) < MAX_HANDSHAKES:
                return
            self._forget(handshake).close()
            self._refuse(handshake.address, TimeoutError("it said too little"))

    def _forget(self, handshake: _Handshake) -> TlsStream:
        self._poller.unregister(handshake.connection)
        del self._handshakes[handshake.connection.fileno()]
        return handshake.connection

    def _refuse(self, address: str, error: OSError) -> None:
        if address not in self._refused and len(self._refused) < _MAX_REMEMBERED:
            self._refused.add(address)
            logger.warning("refused a connection from %s, further ones silently: %s", address, error)
