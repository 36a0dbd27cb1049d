"""Windows of blocks in this process: what NIXL does, without it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

ADDRESS = 1 << 40  # of every window, as a peer names it


class MemoryWindows:
    """A WindowMaker."""

    def __init__(self) -> None:
        self.made: list[MemoryWindow] = []
        self.is_slow = False  # nothing opens
        self.on_read: Callable[[MemoryWindow], None] = lambda window: None  # before what was read is looked at

    def make(self, num_bytes: int) -> MemoryWindow:
        window = MemoryWindow(self, num_bytes)
        self.made.append(window)
        return window


class MemoryWindow:
    def __init__(self, maker: MemoryWindows, num_bytes: int) -> None:
        self.memory = memoryview(bytearray(num_bytes))
        self.name = secrets.token_bytes(4)
        self.num_reads = 0
        self.is_closed = False
        self._maker = maker
        self._source: MemoryWindow | None = None

    def poll(self) -> bool:
        self._check()
        return not self._maker.is_slow

    def description(self) -> tuple[bytes, int]:
        return self.name, ADDRESS

    def expect_reader(self) -> None:
        self._check()

    def attach(self, metadata: bytes) -> None:
        self._check()
        self._source = next(window for window in self._maker.made if window.name == metadata)

    def read(self, pieces: Sequence[tuple[int, int, int]]) -> None:
        assert self._source is not None
        for place, address, num_bytes in pieces:
            self._source._check()
            begin = address - ADDRESS
            self.memory[place : place + num_bytes] = self._source.memory[begin : begin + num_bytes]
        self.num_reads += 1
        self._maker.on_read(self)
        self._check()

    def interrupt(self) -> None:
        self.is_closed = True

    close = interrupt

    def _check(self) -> None:
        if self.is_closed:
            raise ConnectionResetError("the window is closed")
