"""Blocks over TCP, behind the cluster's TLS where there is any: one connection per peer, one question at a time."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence

import msgspec

from schedcore.api.cluster_tls import NODE, ClusterTls
from schedcore.api.frame_socket import network_address, prepare_network
from schedcore.api.types import PeerSource
from schedcore.peers import block_wire
from schedcore.peers.block_wire import (
    MAX_PULLED_KEYS,
    RECORD_HEAD,
    Answer,
    AskHeld,
    AskSession,
    AskSessions,
    BlockLine,
    Greet,
    Held,
    PeerError,
    Pull,
    Question,
    Refused,
    SessionFound,
    SessionNames,
    Welcomed,
)
from schedcore.tiers.block_digest import Key, block_digest
from schedcore.tiers.session_files import SessionName

CONNECT_SECONDS = 2.0
SILENCE_SECONDS = 3.0  # of a peer that was asked; a long step of its engine may take as long


class PeerRefusedError(PeerError):
    """The peer's blocks are of no use here, or it is another engine by now: asking again is in vain."""


class TcpTransport:
    def __init__(self, tls: ClusterTls | None, fingerprint: str, block_bytes: int) -> None:
        self._tls, self._fingerprint, self._block_bytes = tls, fingerprint, block_bytes

    def connect(self, source: PeerSource) -> TcpPeer:
        """Raises OSError, PeerRefusedError, ValueError."""
        connection = socket.create_connection(network_address(source.endpoint), CONNECT_SECONDS)
        try:
            prepare_network(connection)
            connection.settimeout(CONNECT_SECONDS)
            if self._tls is not None:
                connection = self._tls.wrap_dialed(connection, NODE)
                connection.settimeout(CONNECT_SECONDS)
                connection.do_handshake()
            peer = TcpPeer(connection)
            peer.greet(Greet(self._fingerprint, self._block_bytes, source.incarnation))
        except BaseException:
            connection.close()
            raise
        return peer


class TcpPeer:
    """A PeerBlocks."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._line = BlockLine(connection)
        self.has_windows = False  # it says so when it is greeted

    def greet(self, greeting: Greet) -> None:
        """Raises OSError, PeerRefusedError."""
        self._line.limit_silence(SILENCE_SECONDS)
        welcomed = self.ask(greeting)
        if not isinstance(welcomed, Welcomed):
            raise PeerError("the peer does not answer as one")
        self.has_windows = welcomed.has_windows

    def session_tokens(self, name: SessionName) -> bytes | None:
        answer = self.ask(AskSession(name))
        if not isinstance(answer, SessionFound):
            raise PeerError("the peer answers something else")
        return answer.token_ids

    def recent_sessions(self, max_num_sessions: int) -> list[SessionName]:
        answer = self.ask(AskSessions(max_num_sessions))
        if not isinstance(answer, SessionNames):
            raise PeerError("the peer answers something else")
        return answer.names

    def held(self, keys: Sequence[Key]) -> list[bool]:
        answer = self.ask(AskHeld(b"".join(keys)))
        if not isinstance(answer, Held) or len(answer.is_held) != len(keys):
            raise PeerError("the peer answers something else")
        return [byte == 1 for byte in answer.is_held]

    def pull(self, keys: Sequence[Key], places: Sequence[memoryview]) -> Iterator[bool]:
        for i in range(0, len(keys), MAX_PULLED_KEYS):
            part = keys[i : i + MAX_PULLED_KEYS]
            self._line.say(Pull(b"".join(part)))
            for key, place in zip(part, places[i : i + MAX_PULLED_KEYS], strict=True):
                is_given, digest = RECORD_HEAD.unpack(self._line.receive(RECORD_HEAD.size))
                if is_given > 1:
                    raise PeerError("the peer sent no record")
                if is_given:
                    self._line.receive_into(place)
                yield bool(is_given) and digest == block_digest(key, place)

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._line.close()

    def ask(self, question: Question) -> Answer:
        """Raises OSError, PeerRefusedError."""
        self.say(question)
        return self.hear()

    def say(self, question: Question) -> None:
        self._line.say(question)

    def hear(self) -> Answer:
        """What was said first of what is not answered yet. Raises OSError, PeerRefusedError."""
        try:
            answer = block_wire.decode_answer(self._line.hear())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PeerError(f"the peer sent what is no message: {error}") from None
        if isinstance(answer, Refused):
            raise PeerRefusedError(answer.reason)
        return answer
