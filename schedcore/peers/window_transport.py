"""Blocks by windows (block_window.py), and over TCP until these are open, or where they fail.

The connection is TCP's, with its authentication, and everything but the blocks goes over it: their digests, too.
Windows are opened with the first pull, beside it: nobody waits for them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from schedcore.api.types import PeerSource
from schedcore.peers.block_transport import PeerBlocks
from schedcore.peers.block_window import BlockWindow, WindowMaker, blocks_per_half, place_in_window, window_bytes
from schedcore.peers.block_wire import RECORD_HEAD, OpenWindow, PeerError, Stage, Staged, WindowOpened
from schedcore.peers.tcp_transport import TcpPeer, TcpTransport
from schedcore.tiers.block_digest import Key, block_digest
from schedcore.tiers.session_files import SessionName

MAX_FAILURES = 256  # sources that are remembered

logger = logging.getLogger(__name__)


class WindowTransport:
    """A BlockTransport, for any thread."""

    def __init__(self, tcp: TcpTransport, maker: WindowMaker, block_bytes: int) -> None:
        self._tcp, self._maker, self._block_bytes = tcp, maker, block_bytes
        self._failed: list[PeerSource] = []

    def connect(self, source: PeerSource) -> PeerBlocks:
        """Raises OSError, PeerRefusedError, ValueError."""
        peer = self._tcp.connect(source)
        if not peer.has_windows or source in self._failed:
            return peer
        return WindowPeer(peer, source, self)

    def make_window(self) -> BlockWindow:
        """Raises OSError."""
        return self._maker.make(window_bytes(self._block_bytes))

    @property
    def block_bytes(self) -> int:
        return self._block_bytes

    def note_failure(self, source: PeerSource, error: OSError) -> None:
        """That one's blocks come over TCP from now on."""
        logger.warning("blocks from the engine at %s come over TCP: %s", source.endpoint, error)
        self._failed = [*self._failed[-MAX_FAILURES:], source]


class WindowPeer:
    """A PeerBlocks."""

    def __init__(self, peer: TcpPeer, source: PeerSource, transport: WindowTransport) -> None:
        self._peer, self._source, self._transport = peer, source, transport
        self._block_bytes = transport.block_bytes
        self._window: BlockWindow | None = None
        self._address = 0  # of the peer's window
        self._is_attached = self._has_failed = False

    @property
    def is_attached(self) -> bool:
        """Blocks come by windows."""
        return self._is_attached

    @property
    def has_failed(self) -> bool:
        """They come over TCP, for good."""
        return self._has_failed

    def session_tokens(self, name: SessionName) -> bytes | None:
        return self._peer.session_tokens(name)

    def recent_sessions(self, max_num_sessions: int) -> list[SessionName]:
        return self._peer.recent_sessions(max_num_sessions)

    def held(self, keys: Sequence[Key]) -> list[bool]:
        return self._peer.held(keys)

    def pull(self, keys: Sequence[Key], places: Sequence[memoryview]) -> Iterator[bool]:
        if keys and self.try_windows():
            return self._pull_by_windows(keys, places)
        return self._peer.pull(keys, places)

    def interrupt(self) -> None:
        self._peer.interrupt()
        if (window := self._window) is not None:
            window.interrupt()

    def close(self) -> None:
        self._close_window()
        self._peer.close()

    def try_windows(self) -> bool:
        """Whether both are open and attached. Raises OSError where the peer is gone."""
        if self._is_attached or self._has_failed:
            return self._is_attached
        try:
            if self._window is None:
                self._window = self._transport.make_window()
            if not self._window.poll():
                return False
        except OSError as error:
            self._give_up(error)
            return False
        opened = self._peer.ask(OpenWindow())
        if not isinstance(opened, WindowOpened):
            raise PeerError("the peer answers something else")
        if opened.num_bytes and not opened.metadata:
            return False
        try:
            if opened.num_bytes != window_bytes(self._block_bytes):
                raise PeerError("the peer has no window, or one of another size")
            self._window.attach(opened.metadata)
        except OSError as error:
            self._give_up(error)
            return False
        self._address, self._is_attached = opened.address, True
        logger.info("blocks from the engine at %s come by windows from now on", self._source.endpoint)
        return True

    def _pull_by_windows(self, keys: Sequence[Key], places: Sequence[memoryview]) -> Iterator[bool]:
        size = blocks_per_half(self._block_bytes)
        parts = [(keys[i : i + size], places[i : i + size]) for i in range(0, len(keys), size)]
        self._peer.say(Stage(b"".join(parts[0][0]), 0))
        for i, (part, part_places) in enumerate(parts):
            if i + 1 < len(parts):  # into the half that has been read
                self._peer.say(Stage(b"".join(parts[i + 1][0]), (i + 1) % 2))
            digests = self._digests(len(part))
            self._read([k for k, digest in enumerate(digests) if digest is not None], i % 2)
            for k, (key, place) in enumerate(zip(part, part_places, strict=True)):
                yield self._take(key, place, digests[k], place_in_window(i % 2, k, self._block_bytes))

    def _digests(self, num_keys: int) -> list[bytes | None]:
        """Of the next part that was asked for; None where the peer does not have the block."""
        staged = self._peer.hear()
        if not isinstance(staged, Staged) or len(staged.records) != num_keys * RECORD_HEAD.size:
            raise PeerError("the peer answers something else")
        return [digest if is_given else None for is_given, digest in RECORD_HEAD.iter_unpack(staged.records)]

    def _read(self, indices: list[int], half: int) -> None:
        """Raises PeerError: then the window is of no use either."""
        assert self._window is not None
        pieces: list[tuple[int, int, int]] = []
        for index in indices:
            place = place_in_window(half, index, self._block_bytes)
            if pieces and sum(pieces[-1][::2]) == place:
                place, _, num_bytes = pieces.pop()
                pieces.append((place, self._address + place, num_bytes + self._block_bytes))
            else:
                pieces.append((place, self._address + place, self._block_bytes))
        if not pieces:
            return
        try:
            self._window.read(pieces)
        except OSError as error:
            self._give_up(error)
            raise PeerError(f"a pull has ended in the middle: {error}") from None

    def _take(self, key: Key, place: memoryview, digest: bytes | None, begin: int) -> bool:
        assert self._window is not None
        block = self._window.memory[begin : begin + self._block_bytes]
        if digest is None or digest != block_digest(key, block):
            return False
        place[:] = block
        return True

    def _give_up(self, error: OSError) -> None:
        self._transport.note_failure(self._source, error)
        self._has_failed, self._is_attached = True, False
        self._close_window()

    def _close_window(self) -> None:
        if self._window is not None:
            self._window.close()
            self._window = None
