"""One end of the line between gateway and engine: frames over a stream socket, Unix or TCP.

A frame is its length in four bytes, little-endian, then a message (wire.py). Whoever has something to say makes the
system call itself, and the call wakes the reader: where computing keeps every core busy, a thread in between would
wait for its turn for milliseconds, at both ends.
"""

from __future__ import annotations

import socket
import struct

from schedcore.api.tls_stream import MIN_ROOM, TlsStream

SCHEME, NETWORK_SCHEME = "ipc://", "tcp://"
MAX_FRAME_BYTES = 1 << 28  # a longer frame is no frame: the line carries something else
MAX_NETWORK_FRAME_BYTES = 1 << 26  # the same between machines, where it may be a mistake more often
_KEEPALIVE_SECONDS, _KEEPALIVE_PROBES = 1, 3  # of a quiet connection
_UNHEARD_MS = 3000  # that what was sent may stay unacknowledged: then the machine or the cable is gone
_READ_BYTES = max(1 << 17, MIN_ROOM)
_HEADER = struct.Struct("<I")


def listen(endpoint: str) -> socket.socket:
    """`endpoint`: `ipc://` and a path that does not exist yet, or `tcp://host:port`. Raises OSError, ValueError."""
    if endpoint.startswith(NETWORK_SCHEME):
        return _listen_to_network(endpoint)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_path(endpoint))
        listener.listen()
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(endpoint: str) -> FrameSocket:
    """On this machine. Raises OSError if nobody listens there, ValueError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(_path(endpoint))
    except BaseException:
        connection.close()
        raise
    return FrameSocket(connection)


def network_address(endpoint: str) -> tuple[str, int]:
    """(host, port) of `tcp://host:port`; `[::1]` is host ::1. Raises ValueError."""
    host, colon, port = endpoint.removeprefix(NETWORK_SCHEME).rpartition(":")
    if not endpoint.startswith(NETWORK_SCHEME) or not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"an endpoint is {NETWORK_SCHEME}host:port, not {endpoint!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def network_endpoint(host: str, port: int) -> str:
    return f"{NETWORK_SCHEME}[{host}]:{port}" if ":" in host else f"{NETWORK_SCHEME}{host}:{port}"


def prepare_network(connection: socket.socket) -> None:
    """A peer whose machine or cable is gone is noticed within seconds, and no small frame waits for another."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_SECONDS),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", _UNHEARD_MS),
    ):
        if hasattr(socket, name):  # Linux has them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _listen_to_network(endpoint: str) -> socket.socket:
    host, port = network_address(endpoint)
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _path(endpoint: str) -> str:
    if not endpoint.startswith(SCHEME):
        raise ValueError(f"an endpoint is {SCHEME} and a path, not {endpoint!r}")
    return endpoint.removeprefix(SCHEME)


class FrameError(ConnectionError):
    """What came can be no frame: the peer lives, but speaks something else."""


class FrameSocket:
    """Never blocks. Not thread-safe. Once anything has raised ConnectionError the peer is gone: close it."""

    def __init__(self, connection: socket.socket | TlsStream, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        """connection: plain, or TLS whose handshake is made."""
        self._tls = connection if isinstance(connection, TlsStream) else None
        if isinstance(connection, socket.socket):
            connection.setblocking(False)
        self._socket = connection
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._rest = bytearray()  # of a frame that has not arrived in full
        self._unsent = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Frames wait here until the peer reads: call flush() when the socket is writable."""
        return bool(self._unsent) or (self._tls is not None and self._tls.has_unsent)

    def send(self, frame: bytes) -> None:
        """Raises ValueError for a frame that the peer would refuse."""
        if len(frame) > self._max_frame_bytes:
            raise ValueError(f"a message of {len(frame)} bytes is too long; at most {self._max_frame_bytes} fit")
        data = _HEADER.pack(len(frame)) + frame
        if self._unsent:
            self._unsent += data
            self.flush()
        elif (num_sent := self._send(data)) < len(data):
            self._unsent += data[num_sent:]

    def flush(self) -> None:
        """Sends of what is unsent as much as the socket takes."""
        if self._unsent:
            del self._unsent[: self._send(self._unsent)]
        elif self._tls is not None:
            try:
                self._tls.flush()
            except OSError as error:
                raise _lost(error) from None

    def receive(self) -> list[bytes]:
        """The frames that are complete, in order; none if it was called for nothing."""
        num_read = self._recv(self._view)
        if num_read is None:
            return []
        if not num_read:
            raise ConnectionResetError("the peer has closed the connection")
        if not self._rest:
            frames, num_used = _split(self._view[:num_read], self._max_frame_bytes)
            if num_used < num_read:
                self._rest += self._view[num_used:num_read]
            return frames
        self._rest += self._view[:num_read]
        with memoryview(self._rest) as view:
            frames, num_used = _split(view, self._max_frame_bytes)
        del self._rest[:num_used]
        return frames

    def close(self) -> None:
        self._socket.close()

    def _recv(self, view: memoryview) -> int | None:
        """None: nothing has come."""
        try:
            return self._socket.recv_into(view)
        except BlockingIOError:
            return None
        except OSError as error:
            raise _lost(error) from None

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _lost(error) from None


def _lost(error: OSError) -> ConnectionError:
    """Whatever a machine, a cable or TLS says of it."""
    return error if isinstance(error, ConnectionError) else ConnectionAbortedError(f"the connection is lost: {error}")


def _split(data: memoryview, max_frame_bytes: int) -> tuple[list[bytes], int]:
    """(the complete frames, how many bytes they took). Raises FrameError for a frame that cannot be one."""
    frames = []
    start, size = 0, len(data)
    while size - start >= _HEADER.size:
        (length,) = _HEADER.unpack_from(data, start)
        if length > max_frame_bytes:
            raise FrameError(f"a frame of {length} bytes cannot be meant")
        end = start + _HEADER.size + length
        if end > size:
            break
        frames.append(bytes(data[start + _HEADER.size : end]))
        start = end
    return frames, start
