"""Blocks by windows: the same blocks as over TCP, and over TCP wherever a window fails.

Those of NIXL itself run where it is installed (`make test-nixl`), the others over memory of this process.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from fakes.eventually import wait_until
from fakes.memory_windows import MemoryWindow, MemoryWindows
from gateway.fleet.certificates import make_certificates
from schedcore.api.cluster_tls import NODE, ClusterTls
from schedcore.api.types import PeerSource
from schedcore.peers import block_window, nixl_window
from schedcore.peers.block_server import BlockServer
from schedcore.peers.block_transport import PeerBlocks
from schedcore.peers.block_window import WindowMaker, blocks_per_half
from schedcore.peers.block_wire import OpenWindow, Stage, WindowOpened
from schedcore.peers.nixl_window import NixlWindow, NixlWindows, has_nixl
from schedcore.peers.tcp_transport import TcpPeer, TcpTransport
from schedcore.peers.window_transport import WindowPeer, WindowTransport
from schedcore.tiers.block_digest import Key
from schedcore.tiers.session_files import SessionName

BLOCK_BYTES = 5000
NUM_IN_HALF = 8
KEYS = [bytes([i, 1]) * 8 for i in range(100)]
SECONDS = 60.0  # a deadline, not a measurement
_others: set[psutil.Process] = set()
needs_nixl = pytest.mark.skipif(not has_nixl(), reason="NIXL is not installed here: make test-nixl")


class Store:
    """Has all but every fifth block."""

    def __init__(self) -> None:
        self.blocks = {key: bytearray(key * 400)[:BLOCK_BYTES] for i, key in enumerate(KEYS) if i % 5}
        self.on_copies: Callable[[], None] = lambda: None

    def session_tokens(self, name: SessionName) -> bytes | None:
        return struct.pack("<3i", 1, 2, 3)

    def recent_sessions(self, max_num_sessions: int) -> list[SessionName]:
        return [SessionName("", "", "chat")]

    def held(self, keys: Sequence[Key]) -> bytes:
        return bytes(key in self.blocks for key in keys)

    def copies(self, keys: Sequence[Key]) -> list[bytearray | None]:
        self.on_copies()
        return [self.blocks.get(key) for key in keys]


class Pair:
    """A giver, and who pulls from it by windows of one kind."""

    def __init__(self, maker: WindowMaker, tls: ClusterTls | None = None, giver: WindowMaker | None = None) -> None:
        self.store, self.maker = Store(), maker
        self.server = BlockServer("tcp://127.0.0.1:0", tls, self.store, "f", BLOCK_BYTES, "engine", giver or maker)
        self.transport = WindowTransport(TcpTransport(tls, "f", BLOCK_BYTES), maker, BLOCK_BYTES)
        self._peers: list[PeerBlocks] = []

    def connect(self) -> PeerBlocks:
        peer = self.transport.connect(PeerSource(self.server.endpoint, "engine"))
        self._peers.append(peer)
        return peer

    def attached(self) -> WindowPeer:
        peer = self.connect()
        assert isinstance(peer, WindowPeer)
        wait_until(peer.try_windows, SECONDS)
        return peer

    def expected(self, keys: list[Key]) -> list[bytearray | None]:
        return [self.store.blocks.get(key) for key in keys]

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        self.server.close()


def pull(peer: PeerBlocks, keys: list[Key]) -> list[bytearray | None]:
    places = [bytearray(BLOCK_BYTES) for _ in keys]
    found = list(peer.pull(keys, [memoryview(place) for place in places]))
    assert all(is_done or not any(place) for is_done, place in zip(found, places, strict=True)), "nothing of it is left"
    return [place if is_done else None for place, is_done in zip(places, found, strict=True)]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_window, "WINDOW_BYTES", 2 * NUM_IN_HALF * BLOCK_BYTES)
    assert blocks_per_half(BLOCK_BYTES) == NUM_IN_HALF


@pytest.fixture(params=["memory", pytest.param("nixl", marks=needs_nixl)])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(MemoryWindows() if request.param == "memory" else NixlWindows(is_loopback=True))
    yield pair
    pair.close()


@pytest.fixture
def in_memory() -> Iterator[Pair]:
    pair = Pair(MemoryWindows())
    yield pair
    pair.close()


@pytest.fixture
def by_nixl() -> Iterator[Pair]:
    pair = Pair(NixlWindows(is_loopback=True))
    yield pair
    pair.close()


def test_what_is_asked_for_comes_by_windows(pair: Pair) -> None:
    peer = pair.attached()
    assert peer.session_tokens(SessionName("", "", "chat")) == struct.pack("<3i", 1, 2, 3)
    assert peer.recent_sessions(1) == [SessionName("", "", "chat")]
    for keys in (KEYS, KEYS[:1], KEYS[:1] * 3, KEYS[1:2], KEYS[: NUM_IN_HALF + 1], KEYS * 3, []):
        assert pull(peer, keys) == pair.expected(keys)
        assert peer.held(keys) == [block is not None for block in pair.expected(keys)]
    assert peer.is_attached
    assert pair.server.num_given_blocks == 80 + 1 + 7 + 240


@needs_nixl
def test_nixl_behind_tls(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    pair = Pair(NixlWindows(is_loopback=True), ClusterTls(tmp_path, NODE))
    try:
        assert pull(pair.attached(), KEYS) == pair.expected(KEYS)
    finally:
        pair.close()


def test_until_windows_are_open_blocks_come_over_tcp(in_memory: Pair) -> None:
    assert isinstance(in_memory.maker, MemoryWindows)
    in_memory.maker.is_slow = True
    peer = in_memory.connect()
    assert isinstance(peer, WindowPeer)
    assert pull(peer, KEYS) == in_memory.expected(KEYS)
    assert not peer.is_attached
    in_memory.maker.is_slow = False
    assert pull(peer, KEYS) == in_memory.expected(KEYS)
    assert peer.is_attached
    near, far = in_memory.maker.made
    assert (near.num_reads, far.num_reads) == (-(-len(KEYS) // NUM_IN_HALF), 0)
    peer.close()
    assert near.is_closed
    wait_until(lambda: far.is_closed, SECONDS)


def test_who_has_no_windows_is_spoken_with_over_tcp(in_memory: Pair) -> None:
    plain = BlockServer("tcp://127.0.0.1:0", None, in_memory.store, "f", BLOCK_BYTES, "engine")
    peer = in_memory.transport.connect(PeerSource(plain.endpoint, "engine"))
    try:
        assert isinstance(peer, TcpPeer)
        assert pull(peer, KEYS) == in_memory.expected(KEYS)
        assert peer.ask(OpenWindow()) == WindowOpened(b"", 0, 0)
    finally:
        peer.close()
        plain.close()


class _Broken:
    def make(self, num_bytes: int) -> MemoryWindow:
        raise OSError("no memory")


class _Small(MemoryWindows):
    def make(self, num_bytes: int) -> MemoryWindow:
        return super().make(num_bytes // 2)


@pytest.mark.parametrize("is_giver", [False, True])
def test_a_window_that_cannot_be_had_is_done_without(is_giver: bool) -> None:
    windows = MemoryWindows()
    pair = Pair(windows, giver=_Broken()) if is_giver else Pair(_Broken(), giver=windows)
    try:
        for _ in range(2):
            assert pull(pair.connect(), KEYS) == pair.expected(KEYS)
        assert all(window.is_closed for window in windows.made)
    finally:
        pair.close()


def test_a_damaged_block_is_refused_and_no_byte_of_it_taken(in_memory: Pair) -> None:
    def damage(window: MemoryWindow) -> None:
        for half in range(2):
            window.memory[(half * NUM_IN_HALF + 2) * BLOCK_BYTES + 77] ^= 4  # the third block

    assert isinstance(in_memory.maker, MemoryWindows)
    in_memory.maker.on_read = damage
    keys = [key for key in KEYS if key in in_memory.store.blocks]
    found = pull(in_memory.attached(), keys)
    assert [i for i, block in enumerate(found) if block is None] == list(range(2, len(keys), NUM_IN_HALF))
    assert all(block == in_memory.store.blocks[key] for key, block in zip(keys, found, strict=True) if block)


def test_what_is_staged_later_is_never_taken_for_what_was_asked_for(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digest is over its key."""
    peer = pair.attached()
    read = peer._window.read  # type: ignore[union-attr]
    present = [key for key in KEYS if key in pair.store.blocks]

    def late_read(pieces: Sequence[tuple[int, int, int]]) -> None:
        peer._peer.say(Stage(b"".join(present[20:24]), 0))
        staged = peer._peer.hear()
        assert staged.num_given == 4  # type: ignore[union-attr]
        read(pieces)

    monkeypatch.setattr(peer._window, "read", late_read)
    assert pull(peer, present[:4]) == [None] * 4


def test_a_window_that_dies_in_the_middle_ends_the_pull_and_tcp_goes_on(in_memory: Pair) -> None:
    assert isinstance(in_memory.maker, MemoryWindows)
    peer = in_memory.attached()
    num_read = 0

    def die(window: MemoryWindow) -> None:
        nonlocal num_read
        num_read += 1
        if num_read == 3:
            window.close()

    in_memory.maker.on_read = die
    found: list[bool] = []
    places = [memoryview(bytearray(BLOCK_BYTES)) for _ in KEYS]
    with pytest.raises(OSError, match="in the middle"):
        found.extend(peer.pull(KEYS, places))
    assert all(window.is_closed for window in in_memory.maker.made[:1])
    peer.close()
    again = in_memory.connect()
    assert isinstance(again, TcpPeer)
    assert pull(again, KEYS) == in_memory.expected(KEYS)


@pytest.mark.parametrize(
    "stage", [Stage(KEYS[0], 2), Stage(KEYS[0], -1), Stage(b"".join(KEYS[: NUM_IN_HALF + 1]), 0), Stage(b"odd", 0)]
)
def test_what_cannot_be_staged_ends_the_connection(stage: Stage, in_memory: Pair) -> None:
    peer = in_memory.attached()
    with pytest.raises(OSError, match="hung up"):
        peer._peer.ask(stage)
    other = in_memory.connect()
    assert isinstance(other, WindowPeer)
    with pytest.raises(OSError, match="hung up"):  # there is no window yet
        other._peer.ask(Stage(KEYS[0], 0))
    assert pull(in_memory.attached(), KEYS) == in_memory.expected(KEYS)


# ---- NIXL's processes ----


@pytest.fixture(autouse=True)
def others() -> Iterator[None]:
    """Processes that tests before this one left running."""
    _others.update(psutil.Process().children(recursive=True))
    yield
    _others.clear()


def children() -> list[psutil.Process]:
    """That this test has started."""
    return [child for child in psutil.Process().children(recursive=True) if child not in _others]


@pytest.mark.skipif(has_nixl(), reason="NIXL is installed here")
def test_where_nixl_is_missing_blocks_come_over_tcp(by_nixl: Pair) -> None:
    peer = by_nixl.connect()
    assert isinstance(peer, WindowPeer)

    def has_failed() -> bool:
        assert not peer.try_windows()
        return peer.has_failed

    wait_until(has_failed, SECONDS)
    assert pull(peer, KEYS) == by_nixl.expected(KEYS)
    assert children() == []


@needs_nixl
@pytest.mark.parametrize("whose", ["giver", "reader"])
@pytest.mark.parametrize("transport", ["tcp", "all"])
def test_a_killed_process_of_nixl_ends_the_pull_and_tcp_goes_on(
    whose: str, transport: str, by_nixl: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", transport)
    peer = by_nixl.attached()
    assert isinstance(peer._window, NixlWindow)
    own = peer._window.pid
    [others] = [child for child in children() if child.pid != own]
    victim = own if whose == "reader" else others.pid
    found: list[bool] = []
    places = [memoryview(bytearray(BLOCK_BYTES)) for _ in KEYS * 3]

    def pull_and_kill() -> None:
        for is_done in peer.pull(KEYS * 3, places):
            found.append(is_done)
            if len(found) == 20:
                os.kill(victim, signal.SIGKILL)

    with pytest.raises(OSError):  # noqa: PT011 - whatever the system says of it
        pull_and_kill()
    assert 20 <= len(found) < 3 * len(KEYS)
    blocks = by_nixl.expected(KEYS * 3)
    for is_done, place, block in zip(found, places, blocks, strict=False):
        assert bytes(place) == (block if is_done else bytes(BLOCK_BYTES))
    peer.close()
    again = by_nixl.connect()
    assert pull(again, KEYS) == by_nixl.expected(KEYS)
    again.close()
    wait_until(lambda: children() == [], SECONDS)


@needs_nixl
def test_a_stopped_process_of_nixl_costs_a_bounded_time_and_writes_nothing_late(
    by_nixl: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")  # shared memory is read without the other process
    monkeypatch.setattr(nixl_window, "ANSWER_SECONDS", 1.0)
    peer = by_nixl.attached()
    assert isinstance(peer._window, NixlWindow)
    [other] = [child for child in children() if child.pid != peer._window.pid]
    places = [memoryview(bytearray(BLOCK_BYTES)) for _ in KEYS]
    other.suspend()
    window = peer._window
    with pytest.raises(OSError, match="in the middle"):
        list(peer.pull(KEYS, places))
    assert window._process.returncode == -signal.SIGKILL
    other.resume()
    peer.close()
    wait_until(lambda: children() == [], SECONDS)
    assert not any(map(any, places))


@needs_nixl
def test_nothing_is_left_of_pulls_over_nixl(by_nixl: Pair) -> None:
    def num_open() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    by_nixl.connect().close()
    wait_until(lambda: threading.active_count() <= 3, SECONDS)
    before = num_open()
    for _ in range(3):
        peer = by_nixl.attached()
        assert pull(peer, KEYS) == by_nixl.expected(KEYS)
        peer.close()
    wait_until(lambda: children() == [] and num_open() == before, SECONDS)


@needs_nixl
def test_an_interrupted_pull_over_nixl_ends(by_nixl: Pair) -> None:
    peer = by_nixl.attached()
    taken = peer.pull(KEYS, [memoryview(bytearray(BLOCK_BYTES)) for _ in KEYS])
    next(taken)
    peer.interrupt()
    with pytest.raises(OSError):  # noqa: PT011
        list(taken)
    peer.close()
