"""Gives this engine's cached blocks to other engines that ask for them by their keys.

A thread per connection, few at a time; beside hashing and sending, which release the interpreter lock, they do nothing.
What the core knows is asked of the engine's loop, between two steps. A block is copied while the core keeps it where it
is, then sent: a slow peer holds no memory of ours.

Keys are digests of fingerprint, salt and tokens (cpp/core/base/block_key.h), so whoever can name a block has its
tokens and its salt already.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from schedcore.api.cluster_tls import NODE, ClusterTls, check_role
from schedcore.api.frame_socket import listen, network_address, network_endpoint, prepare_network
from schedcore.peers import block_wire
from schedcore.peers.block_window import StagingArea, WindowMaker
from schedcore.peers.block_wire import (
    MAX_PULLED_KEYS,
    NOT_GIVEN,
    RECORD_HEAD,
    AskHeld,
    AskSession,
    AskSessions,
    BlockLine,
    Greet,
    Held,
    OpenWindow,
    PeerError,
    Pull,
    Refused,
    SessionFound,
    SessionNames,
    Stage,
    Welcomed,
    split_keys,
)
from schedcore.tiers.block_digest import Key, block_digest
from schedcore.tiers.session_files import SessionName

MAX_CONNECTIONS = 32
HANDSHAKE_SECONDS = 5.0
IDLE_SECONDS = 120.0  # without a question
SEND_SECONDS = 5.0  # in which a peer takes nothing
PIECE_BYTES = 8 << 20  # that are copied at a time

T = TypeVar("T")

logger = logging.getLogger(__name__)


class BlockStore(Protocol):
    """What is given. Thread-safe; may raise TimeoutError where the engine has no time for it."""

    def session_tokens(self, name: SessionName) -> bytes | None: ...
    def recent_sessions(self, max_num_sessions: int) -> list[SessionName]: ...
    def held(self, keys: Sequence[Key]) -> bytes:
        """One byte per key."""

    def copies(self, keys: Sequence[Key]) -> list[bytearray | None]:
        """None where there is no block, or no longer."""


class BlockServer:
    """close() is to be called; threads die with the process."""

    def __init__(
        self,
        endpoint: str,
        tls: ClusterTls | None,
        store: BlockStore,
        fingerprint: str,
        block_bytes: int,
        incarnation: str,
        windows: WindowMaker | None = None,
    ) -> None:
        """endpoint: tcp://host:port, port 0 for any free one. windows: None: blocks are given over TCP only.

        Binds; raises OSError, ValueError.
        """
        self._tls, self._store, self._windows = tls, store, windows
        self._fingerprint, self._block_bytes, self._incarnation = fingerprint, block_bytes, incarnation
        self._listener = listen(endpoint)
        self._listener.setblocking(True)
        self.endpoint = network_endpoint(network_address(endpoint)[0], self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._is_closed = False
        self.num_given_blocks = self.num_refused = 0
        self._thread = threading.Thread(target=self._accept, name="block server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hangs up on everybody."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, address = self._listener.accept()
            except OSError:  # whoever wanted to connect has given up, or this is closed
                continue
            with self._lock:
                is_full = self._is_closed or len(self._connections) >= MAX_CONNECTIONS
                if not is_full:
                    self._connections.add(connection)
            if is_full:
                connection.close()
                continue
            serving = threading.Thread(
                target=self._serve, args=(connection, address[0]), name="block connection", daemon=True
            )
            serving.start()

    def _serve(self, connection: socket.socket, address: str) -> None:
        used = connection
        try:
            used = self._shake(connection)
            with self._lock:
                self._connections.discard(connection)
                self._connections.add(used)
            self._converse(BlockLine(used))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            logger.debug("the engine at %s is served no longer: %s", address, error)
        finally:
            with self._lock:
                self._connections -= {connection, used}
            used.close()

    def _shake(self, connection: socket.socket) -> socket.socket:
        prepare_network(connection)
        connection.settimeout(HANDSHAKE_SECONDS)
        if self._tls is None:
            return connection
        wrapped: ssl.SSLSocket = self._tls.wrap_accepted(connection)
        try:
            wrapped.settimeout(HANDSHAKE_SECONDS)
            wrapped.do_handshake()
            check_role(wrapped, (NODE,))
        except BaseException:
            wrapped.close()
            raise
        return wrapped

    def _converse(self, line: BlockLine) -> None:
        greeting = block_wire.decode_question(line.hear())
        problem = self._problem(greeting)
        if problem:
            self.num_refused += 1
            logger.warning("an engine that wants blocks is refused: %s", problem)
            line.say(Refused(problem))
            return
        line.say(Welcomed(has_windows=self._windows is not None))
        staging = StagingArea(self._windows, self._block_bytes)
        try:
            while not self._is_closed:
                line.limit_silence(IDLE_SECONDS)
                question = block_wire.decode_question(line.hear())
                line.limit_silence(SEND_SECONDS)
                self._answer(line, question, staging)
        finally:
            staging.close()

    def _problem(self, greeting: block_wire.Question) -> str:
        if not isinstance(greeting, Greet):
            return "it did not greet"
        if greeting.incarnation != self._incarnation:
            return "another engine is meant: the one before has ended"
        if greeting.fingerprint != self._fingerprint:
            return "its cache is of another model, dtype or layout"
        if greeting.block_bytes != self._block_bytes:
            return f"its blocks have {greeting.block_bytes} bytes, ours {self._block_bytes}"
        return ""

    def _answer(self, line: BlockLine, question: block_wire.Question, staging: StagingArea) -> None:
        match question:
            case AskSession(name):
                line.say(SessionFound(_in_time(lambda: self._store.session_tokens(name), None)))
            case AskSessions(number):
                line.say(SessionNames(_in_time(lambda: self._store.recent_sessions(number), [])))
            case AskHeld(keys):
                wanted = split_keys(keys)
                line.say(Held(_in_time(lambda: self._store.held(wanted), bytes(len(wanted)))))
            case Pull(keys):
                wanted = split_keys(keys)
                if len(wanted) > MAX_PULLED_KEYS:
                    raise PeerError(f"{len(wanted)} blocks are too many at once")
                self._give(line, wanted)
            case OpenWindow():
                line.say(staging.open())
            case Stage(keys, half):
                staged = staging.stage(split_keys(keys), half, self._copies)
                self.num_given_blocks += staged.num_given
                line.say(staged)
            case Greet():
                raise PeerError("it greets twice")

    def _give(self, line: BlockLine, keys: list[Key]) -> None:
        size = max(1, PIECE_BYTES // self._block_bytes)
        for i in range(0, len(keys), size):
            piece = keys[i : i + size]
            for key, block in zip(piece, self._copies(piece), strict=True):
                if block is None:
                    line.send(NOT_GIVEN)
                else:
                    line.send(RECORD_HEAD.pack(1, block_digest(key, block)))
                    line.send(block)
                    self.num_given_blocks += 1

    def _copies(self, keys: list[Key]) -> list[bytearray | None]:
        nothing: list[bytearray | None] = [None] * len(keys)
        return _in_time(lambda: self._store.copies(keys), nothing)


def _in_time(ask: Callable[[], T], otherwise: T) -> T:
    try:
        return ask()
    except TimeoutError:
        return otherwise
