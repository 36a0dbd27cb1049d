"""A window of blocks behind NIXL: memory shared with a process that has it registered (nixl_process.py)."""

from __future__ import annotations

import contextlib
import importlib.util
import mmap
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from schedcore.peers.block_wire import BlockLine, PeerError
from schedcore.peers.nixl_process import PACKAGES, Attach, Done, Failed, Opened, Order, Read, Serve, Word

ANSWER_SECONDS = 3.0  # to any order
LOOPBACK_DEVICES = "lo"
_words = msgspec.msgpack.Decoder(Word)


def has_nixl() -> bool:
    return any(importlib.util.find_spec(package) is not None for package in PACKAGES)


class NixlWindows:
    """A WindowMaker."""

    def __init__(self, *, is_loopback: bool) -> None:
        """is_loopback: NIXL listens on this machine's loopback only; else where UCX_NET_DEVICES says, or everywhere."""
        self._devices = LOOPBACK_DEVICES if is_loopback else ""

    def make(self, num_bytes: int) -> NixlWindow:
        """Raises OSError."""
        return NixlWindow(num_bytes, self._devices)


class NixlWindow:
    """A BlockWindow. The process is killed with it, and ends with this one."""

    def __init__(self, num_bytes: int, devices: str) -> None:
        """Raises OSError."""
        memory = os.memfd_create("hocket blocks")
        near, far = socket.socketpair()
        try:
            os.ftruncate(memory, num_bytes)
            self.memory = memoryview(mmap.mmap(memory, num_bytes))
            command = [sys.executable, "-m", "schedcore.peers.nixl_process", "--devices", devices]
            handed = (far.fileno(), memory)
            self._process = subprocess.Popen(
                [*command, "--line", str(handed[0]), "--memory", str(handed[1])],
                pass_fds=handed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # where UCX and NIXL log
                start_new_session=True,  # Ctrl-C is for the gateway
            )
        except BaseException:
            near.close()
            raise
        finally:
            far.close()
            os.close(memory)
        near.settimeout(ANSWER_SECONDS)
        self._socket, self._line = near, BlockLine(near)
        self._arrivals = select.poll()  # of near
        self._arrivals.register(near, select.POLLIN)
        self._opened: Opened | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> bool:
        if self._opened is None and self._arrivals.poll(0):
            word = self._hear()
            if not isinstance(word, Opened):
                raise PeerError("NIXL's process does not open its window")
            self._opened = word
        return self._opened is not None

    def description(self) -> tuple[bytes, int]:
        assert self._opened is not None
        return self._opened.metadata, self._opened.address

    def expect_reader(self) -> None:
        self._line.say(Serve())

    def attach(self, metadata: bytes) -> None:
        self._order(Attach(metadata))

    def read(self, pieces: Sequence[tuple[int, int, int]]) -> None:
        self._order(Read(list(pieces)))

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Nothing is read or written by it afterwards."""
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def _order(self, order: Order) -> None:
        self._line.say(order)
        if not isinstance(self._hear(), Done):
            raise PeerError("NIXL's process answers something else")

    def _hear(self) -> Word:
        word: Word = _words.decode(self._line.hear())
        if isinstance(word, Failed):
            raise PeerError(word.reason)
        return word
