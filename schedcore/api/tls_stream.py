"""TLS over a socket that never blocks, with one system call for what has come and one for what goes.

Python's SSLSocket asks the system for each record's head, for its body and for the record that is not there yet, and
raises for that: a frame takes 60 us to send and to read, and 18 through memory
(docs/log/2026-11-25-one-read-per-frame.md).
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import cast

_READ_BYTES = 1 << 16
_RECORD_BYTES = 1 << 15  # of TLS with all that is around it, and more
MIN_ROOM = _READ_BYTES + _RECORD_BYTES  # of recv_into()
_PIECE_BYTES = 1 << 18  # that are encrypted at a time: a slow peer has no copy of a large frame here


class TlsStream:
    """Not thread-safe. Once anything has raised but for want of bytes, the peer is gone: close it."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        """connection: connected; it is closed here. server_hostname: of whoever was dialed; None: it dialed us."""
        connection.setblocking(False)
        self._socket = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        self._encrypted = memoryview(b"")  # that the socket has not taken
        self._buffer = memoryview(bytearray(_READ_BYTES))

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Call flush() when the socket is writable."""
        return bool(self._encrypted)

    def do_handshake(self) -> None:
        """Raises ssl.SSLWantReadError, ssl.SSLWantWriteError: call it again then; OSError if it fails."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._say()
                if self.has_unsent:
                    raise ssl.SSLWantWriteError from None
                if not self._hear():
                    raise ConnectionResetError("the peer has hung up within the handshake") from None
                continue
            except ssl.SSLError:
                self._try_to_say()
                raise
            if not self._say():
                raise ssl.SSLWantWriteError
            return

    def getpeercert(self) -> ssl._PeerCertRetDictType | None:
        """As SSLSocket's."""
        return self._tls.getpeercert()

    def send(self, data: bytes | bytearray) -> int:
        """How many bytes are taken: all of them, or those of whose beginning some are unsent. Raises OSError."""
        if len(data) <= _PIECE_BYTES:
            return self._send_piece(data)
        num_taken = 0
        with memoryview(data) as view:
            while num_taken < len(view) and self.flush():
                num_taken += self._send_piece(view[num_taken : num_taken + _PIECE_BYTES])
        return num_taken

    def flush(self) -> bool:
        """Whether nothing is left. Raises OSError."""
        while self._encrypted:
            try:
                self._encrypted = self._encrypted[self._socket.send(self._encrypted) :]
            except BlockingIOError:
                return False
        return True

    def recv_into(self, room: memoryview) -> int:
        """All that has come: nothing waits here where no poll sees it. 0: the peer has ended it, and nothing is left.

        REQUIRES: MIN_ROOM bytes of room. Raises BlockingIOError where nothing has come; OSError.
        """
        try:
            if not self._hear() and not self._incoming.pending:
                return 0
        except ssl.SSLWantReadError:
            if not self._incoming.pending:  # the end of a handshake may have brought more than that
                raise BlockingIOError from None
        num_read = 0
        try:
            while self._incoming.pending:
                num_more = cast(int, self._tls.read(len(room) - num_read, room[num_read:]))  # into a buffer: a number
                if not num_more:
                    return num_read
                num_read += num_more
        except ssl.SSLWantReadError:  # for the rest of a record
            pass
        except ssl.SSLError:
            self._try_to_say()
            raise
        self._try_to_say()  # new keys may have been agreed on; what has come counts, though the peer may be gone
        if not num_read:
            raise BlockingIOError
        return num_read

    def close(self) -> None:
        self._socket.close()

    def _send_piece(self, piece: bytes | bytearray | memoryview) -> int:
        """All of it, or nothing."""
        if self._encrypted and not self.flush():
            return 0
        num_taken = self._tls.write(piece)
        self._say()
        return num_taken

    def _hear(self) -> bool:
        """False: the peer has ended it. Raises ssl.SSLWantReadError where nothing has come; OSError."""
        try:
            num_read = self._socket.recv_into(self._buffer)
        except BlockingIOError:
            raise ssl.SSLWantReadError from None
        if num_read:
            self._incoming.write(self._buffer[:num_read])
        return bool(num_read)

    def _say(self) -> bool:
        """Sends what TLS has to say, or keeps it behind what is unsent. Whether nothing is left."""
        if self._outgoing.pending:
            said = self._outgoing.read()
            self._encrypted = memoryview(bytes(self._encrypted) + said if self._encrypted else said)
        return not self._encrypted or self.flush()

    def _try_to_say(self) -> None:
        """Who writes or reads next finds that the peer is gone."""
        with contextlib.suppress(OSError):
            self._say()
