"""One end of the line between gateway and engine: frames over a Unix stream socket.

A frame is its length in four bytes, little-endian, then a message (wire.py). Whoever has something to say makes the
system call itself, and the call wakes the reader: where computing keeps every core busy, a thread in between would
wait for its turn for milliseconds, at both ends.
"""

from __future__ import annotations

import socket
import struct

SCHEME = "ipc://"
MAX_FRAME_BYTES = 1 << 28  # a longer frame is no frame: the line carries something else
_READ_BYTES = 1 << 17
_HEADER = struct.Struct("<I")


def listen(endpoint: str) -> socket.socket:
    """`endpoint` is `ipc://` and a path that does not exist yet. Raises OSError, ValueError."""
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
    """Raises OSError if nobody listens there, ValueError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(_path(endpoint))
    except BaseException:
        connection.close()
        raise
    return FrameSocket(connection)


def _path(endpoint: str) -> str:
    if not endpoint.startswith(SCHEME):
        raise ValueError(f"an endpoint is {SCHEME} and a path, not {endpoint!r}")
    return endpoint.removeprefix(SCHEME)


class FrameError(ConnectionError):
    """What came can be no frame: the peer lives, but speaks something else."""


class FrameSocket:
    """Never blocks. Not thread-safe. Once anything has raised ConnectionError the peer is gone: close it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._rest = bytearray()  # of a frame that has not arrived in full
        self._unsent = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Frames wait here until the peer reads: call flush() when the socket is writable."""
        return bool(self._unsent)

    def send(self, frame: bytes) -> None:
        """Raises ValueError for a frame that the peer would refuse."""
        if len(frame) > MAX_FRAME_BYTES:
            raise ValueError(f"a message of {len(frame)} bytes is too long; at most {MAX_FRAME_BYTES} fit")
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

    def receive(self) -> list[bytes]:
        """The frames that are complete, in order; none if it was called for nothing."""
        try:
            num_read = self._socket.recv_into(self._buffer)
        except BlockingIOError:
            return []
        if not num_read:
            raise ConnectionResetError("the peer has closed the connection")
        if not self._rest:
            frames, num_used = _split(self._view[:num_read])
            if num_used < num_read:
                self._rest += self._view[num_used:num_read]
            return frames
        self._rest += self._view[:num_read]
        with memoryview(self._rest) as view:
            frames, num_used = _split(view)
        del self._rest[:num_used]
        return frames

    def close(self) -> None:
        self._socket.close()

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0


def _split(data: memoryview) -> tuple[list[bytes], int]:
    """(the complete frames, how many bytes they took). Raises FrameError for a frame that cannot be one."""
    frames = []
    start, size = 0, len(data)
    while size - start >= _HEADER.size:
        (length,) = _HEADER.unpack_from(data, start)
        if length > MAX_FRAME_BYTES:
            raise FrameError(f"a frame of {length} bytes cannot be meant")
        end = start + _HEADER.size + length
        if end > size:
            break
        frames.append(bytes(data[start + _HEADER.size : end]))
        start = end
    return frames, start
