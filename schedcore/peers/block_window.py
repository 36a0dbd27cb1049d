"""Memory that a peer reads blocks from, or that reads them from a peer, without a byte of them on the connection.

Blocks are staged: the giver copies them into its window, says their digests, and the peer reads them into its own,
checks them there, and only then copies them to where they belong. So whatever writes late writes into a window.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from schedcore.peers.block_wire import NOT_GIVEN, RECORD_HEAD, PeerError, Staged, WindowOpened
from schedcore.tiers.block_digest import Key, block_digest

WINDOW_BYTES = 16 << 20  # at most, but for a block in each half
NUM_HALVES = 2  # one is read while the other one is filled

logger = logging.getLogger(__name__)


class BlockWindow(Protocol):
    """One thread's, but for interrupt(). Every call may raise OSError: then it is of no use, and to be closed."""

    memory: memoryview

    def poll(self) -> bool:
        """Whether it is open. Never waits."""

    def description(self) -> tuple[bytes, int]:
        """(metadata, address), for the peer. REQUIRES: it is open."""

    def expect_reader(self) -> None:
        """The peer is about to read. REQUIRES: it is open."""

    def attach(self, metadata: bytes) -> None:
        """read() is from the window of that description from now on. REQUIRES: it is open."""

    def read(self, pieces: Sequence[tuple[int, int, int]]) -> None:
        """(place here, address there, number of bytes) of each. REQUIRES: it is attached."""

    def interrupt(self) -> None:
        """From another thread: what is under way raises OSError."""

    def close(self) -> None: ...


class WindowMaker(Protocol):
    def make(self, num_bytes: int) -> BlockWindow:
        """Begins to open one. Raises OSError."""


def blocks_per_half(block_bytes: int) -> int:
    return max(1, WINDOW_BYTES // NUM_HALVES // block_bytes)


def window_bytes(block_bytes: int) -> int:
    return NUM_HALVES * blocks_per_half(block_bytes) * block_bytes


def place_in_window(half: int, index: int, block_bytes: int) -> int:
    """Where the half's index-th block is."""
    return (half * blocks_per_half(block_bytes) + index) * block_bytes


class StagingArea:
    """What one connection of a giver stages. The window is there once the peer has asked for it."""

    def __init__(self, maker: WindowMaker | None, block_bytes: int) -> None:
        """maker: None: there is never a window."""
        self._maker, self._block_bytes = maker, block_bytes
        self._window: BlockWindow | None = None

    def open(self) -> WindowOpened:
        """Of no bytes where there is none and will be none; without metadata where it is not open yet."""
        if self._maker is None:
            return WindowOpened(b"", 0, 0)
        num_bytes = window_bytes(self._block_bytes)
        try:
            if self._window is None:
                self._window = self._maker.make(num_bytes)
            if not self._window.poll():
                return WindowOpened(b"", 0, num_bytes)
            self._window.expect_reader()
        except OSError as error:
            logger.warning("blocks are given over TCP: %s", error)
            self.close()
            self._maker = None
            return WindowOpened(b"", 0, 0)
        return WindowOpened(*self._window.description(), num_bytes)

    def stage(self, keys: list[Key], half: int, copies: Callable[[list[Key]], list[bytearray | None]]) -> Staged:
        """Into that half of the window. Raises PeerError."""
        if self._window is None or not self._window.poll():
            raise PeerError("there is no window to stage blocks in")
        if len(keys) > blocks_per_half(self._block_bytes) or not 0 <= half < NUM_HALVES:
            raise PeerError("so many blocks, or that half, are not in a window")
        self._window.expect_reader()
        records = bytearray()
        for i, (key, block) in enumerate(zip(keys, copies(keys), strict=True)):
            if block is None:
                records += NOT_GIVEN
                continue
            place = place_in_window(half, i, self._block_bytes)
            self._window.memory[place : place + self._block_bytes] = block
            records += RECORD_HEAD.pack(1, block_digest(key, block))
        return Staged(bytes(records))

    def close(self) -> None:
        if self._window is not None:
            self._window.close()
            self._window = None
