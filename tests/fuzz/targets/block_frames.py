"""What engines say to each other about blocks, from either side: refused or understood, and never a wrong byte taken.

The first byte says whose part the input plays: a peer that asks, or one that answers.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
from collections.abc import Sequence

import msgspec

from fuzz.cursor import Cursor
from schedcore.peers import block_server
from schedcore.peers.block_server import BlockServer
from schedcore.peers.block_wire import BlockLine
from schedcore.peers.tcp_transport import TcpPeer
from schedcore.tiers.block_digest import Key, block_digest
from schedcore.tiers.session_files import SessionName

BLOCK_BYTES = 24
KEYS = [bytes([i]) * 16 for i in range(4)]
BLOCKS = {key: (key * 2)[:BLOCK_BYTES] for key in KEYS[:3]}
_REFUSED = (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
logging.getLogger(block_server.__name__).setLevel(logging.ERROR)


class _Store:
    def session_tokens(self, name: SessionName) -> bytes | None:
        return bytes(8) if name.session_id else None

    def recent_sessions(self, max_num_sessions: int) -> list[SessionName]:
        return [SessionName("", "", "s")][: max(0, max_num_sessions)]

    def held(self, keys: Sequence[Key]) -> bytes:
        return bytes(key in BLOCKS for key in keys)

    def copies(self, keys: Sequence[Key]) -> list[bytearray | None]:
        return [bytearray(BLOCKS[key]) if key in BLOCKS else None for key in keys]


_server = BlockServer("tcp://127.0.0.1:0", None, _Store(), "f", BLOCK_BYTES, "i")


def check(data: bytes) -> None:
    cursor = Cursor(data)
    near, far = socket.socketpair()
    try:
        near.settimeout(5)
        far.settimeout(5)
        if cursor.below(2):
            _ask(near, far, cursor.rest())
        else:
            _answer(near, far, cursor)
    finally:
        near.close()
        far.close()


def _ask(near: socket.socket, far: socket.socket, data: bytes) -> None:
    """Frames as they are, in a first one that greets rightly if the data want it."""
    greeting = msgspec.msgpack.encode(
        {"type": "greet", "fingerprint": "f", "block_bytes": BLOCK_BYTES, "incarnation": "i"}
    )
    far.sendall(struct.pack("<I", len(greeting)) + greeting + data if data[:1] != b"\xff" else data)
    far.shutdown(socket.SHUT_WR)
    with contextlib.suppress(*_REFUSED):
        _server._converse(BlockLine(near))


def _answer(near: socket.socket, far: socket.socket, cursor: Cursor) -> None:
    what, is_framed = cursor.below(4), cursor.below(2)
    data = cursor.rest()
    far.sendall(struct.pack("<I", len(data)) + data if is_framed else data)
    far.shutdown(socket.SHUT_WR)
    peer = TcpPeer(near)
    with contextlib.suppress(OSError, RecursionError):
        match what:
            case 0:
                found = peer.session_tokens(SessionName("", "", "s"))
                assert found is None or isinstance(found, bytes)
            case 1:
                assert all(isinstance(name, SessionName) for name in peer.recent_sessions(4))
            case 2:
                assert len(peer.held(KEYS)) == len(KEYS)
            case _:
                _pull(peer)


def _pull(peer: TcpPeer) -> None:
    places = [bytearray(BLOCK_BYTES) for _ in KEYS]
    taken = peer.pull(KEYS, [memoryview(place) for place in places])
    for key, place, is_whole in zip(KEYS, places, taken, strict=False):
        assert not is_whole or len(block_digest(key, place)) == 16
