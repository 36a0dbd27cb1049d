"""`python -m schedcore.peers.nixl_process`: NIXL, in a process of its own beside the engine's.

Why apart: UCX, under it, ends its process when a peer goes in the middle of a transfer ("Fatal: unexpected error:
Endpoint timeout"), and goes on writing into the reader's memory after a transfer was given up. A process that is
killed does neither, and an engine is no worse off for it (docs/log/2026-11-23-nixl.md).

It has one window of memory, shared with its engine (nixl_window.py), and registered. It progresses transfers only while
there are some, so that it costs nothing between them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import mmap
import os
import select
import socket
import sys
import time
from typing import Any, NoReturn

import msgspec

from schedcore.peers.block_wire import BlockLine

PACKAGES = ("nixl_cu12", "nixl_cu13", "nixl_rocm")  # of these the first that is installed
SERVE_SECONDS = 5.0  # that a peer may read after it was heard of
PROGRESS_SECONDS = 1e-4  # between two looks at transfers
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, ctypes.c_ulong(-1)
MEMORY = "DRAM"
BACKEND = "UCX"


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """First message of the process: the window is registered."""

    metadata: bytes  # NIXL's, of this agent and its window
    address: int  # of the window, as a peer names it


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """To the process: read from that agent from now on. Answered by Done."""

    metadata: bytes


class Read(msgspec.Struct, frozen=True, tag="read"):
    """To the process: (place in the window, the other one's address, number of bytes). Answered by Done."""

    pieces: list[tuple[int, int, int]]


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """To the process: the peer is about to read. No answer."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """What was asked."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Last message."""

    reason: str


Order = Attach | Read | Serve
Word = Opened | Done | Failed
_orders = msgspec.msgpack.Decoder(Order)


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="python -m schedcore.peers.nixl_process")
    parser.add_argument("--line", type=int, required=True, help="descriptor of the socket to the engine")
    parser.add_argument("--memory", type=int, required=True, help="descriptor of the window")
    parser.add_argument("--devices", default="", help="as UCX_NET_DEVICES; empty: as the environment says")
    arguments = parser.parse_args()
    connection = socket.socket(fileno=arguments.line)
    line = BlockLine(connection)
    # UCX reads a neighbour's memory with process_vm_readv(), and fails where Yama keeps that to its parents.
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)
    try:
        agent = _Agent(mmap.mmap(arguments.memory, 0), arguments.devices)
        line.say(agent.opened())
        _obey(agent, line, connection)
    except OSError:  # the engine has hung up
        pass
    except Exception as error:
        with contextlib.suppress(OSError):
            line.say(Failed(f"{type(error).__name__}: {error}"))
    os._exit(0)  # what is still open dies with the process, and no library gets a last word


def _obey(agent: _Agent, line: BlockLine, connection: socket.socket) -> NoReturn:
    serves_until = 0.0
    while True:
        while time.monotonic() < serves_until and not select.select([connection], [], [], PROGRESS_SECONDS)[0]:
            agent.progress()
        order: Order = _orders.decode(line.hear())
        match order:
            case Attach(metadata):
                agent.attach(metadata)
                line.say(Done())
            case Read(pieces):
                agent.read(pieces)
                line.say(Done())
            case Serve():
                serves_until = time.monotonic() + SERVE_SECONDS


class _Agent:
    """Raises what NIXL raises."""

    def __init__(self, window: mmap.mmap, devices: str) -> None:
        api = _nixl()
        self._window = window
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(window))
        name = f"hocket {os.urandom(16).hex()}"
        self._agent = api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=False, backends=[]))
        self._agent.create_backend(BACKEND, {"engine_config": f"NET_DEVICES={devices}"} if devices else {})
        self._agent.register_memory([(self._address, len(window), 0, "")], MEMORY)
        self._peer = ""

    def opened(self) -> Opened:
        return Opened(self._agent.get_agent_metadata(), self._address)

    def attach(self, metadata: bytes) -> None:
        self._peer = self._agent.add_remote_agent(metadata)

    def progress(self) -> None:
        self._agent.get_new_notifs()

    def read(self, pieces: list[tuple[int, int, int]]) -> None:
        """The engine looks at the clock."""
        near = [(self._address + place, num_bytes, 0) for place, _, num_bytes in pieces]
        far = [(address, num_bytes, 0) for _, address, num_bytes in pieces]
        agent = self._agent
        descriptors = [agent.get_xfer_descs(each, MEMORY) for each in (near, far)]
        handle = agent.initialize_xfer("READ", *descriptors, self._peer)
        state = agent.transfer(handle)
        while state == "PROC":
            time.sleep(PROGRESS_SECONDS)
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"the transfer has ended as {state}")
        agent.release_xfer_handle(handle)


def _nixl() -> Any:
    for package in PACKAGES:
        try:
            return importlib.import_module(f"{package}._api")
        except ModuleNotFoundError as error:
            if error.name != package:
                raise
    raise ModuleNotFoundError("NIXL is not installed: pip install 'hocket-server[nixl]'")


if __name__ == "__main__":
    sys.exit(main())
