"""Blocks from one machine to another: what is asked for comes, and nothing else is ever taken for it."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fakes.eventually import wait_until
from gateway.fleet.certificates import make_certificates
from schedcore.api.cluster_tls import GATEWAY, NODE, ClusterTls
from schedcore.api.frame_socket import network_address, network_endpoint
from schedcore.api.types import PeerSource
from schedcore.peers import block_server
from schedcore.peers.block_server import BlockServer
from schedcore.peers.loop_calls import LoopCalls
from schedcore.peers.tcp_transport import PeerRefusedError, TcpPeer, TcpTransport
from schedcore.tiers.block_digest import Key
from schedcore.tiers.session_files import SessionName

BLOCK_BYTES = 5000
KEYS = [bytes([i, 1]) * 8 for i in range(200)]
CHAT = SessionName("tenant", "salt", "chat")
SECONDS = 30.0


class Store:
    """Has every second block, and one session."""

    def __init__(self) -> None:
        self.blocks = {key: bytearray(key * 400)[:BLOCK_BYTES] for key in KEYS[::2]}
        self.is_busy = False

    def session_tokens(self, name: SessionName) -> bytes | None:
        return struct.pack("<3i", 1, 2, 3) if name == CHAT else None

    def recent_sessions(self, max_num_sessions: int) -> list[SessionName]:
        return [CHAT][:max_num_sessions]

    def held(self, keys: Sequence[Key]) -> bytes:
        return bytes(key in self.blocks for key in keys)

    def copies(self, keys: Sequence[Key]) -> list[bytearray | None]:
        if self.is_busy:
            raise TimeoutError
        return [self.blocks.get(key) for key in keys]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    make_certificates(folder)
    return folder


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def tls(request: pytest.FixtureRequest, cluster: Path) -> ClusterTls | None:
    return ClusterTls(cluster, NODE) if request.param else None


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def server(store: Store, tls: ClusterTls | None) -> Iterator[BlockServer]:
    server = BlockServer("tcp://127.0.0.1:0", tls, store, "fingerprint", BLOCK_BYTES, "engine")
    yield server
    server.close()


def source(server: BlockServer, incarnation: str = "engine") -> PeerSource:
    return PeerSource(server.endpoint, incarnation)


def connect(server: BlockServer, tls: ClusterTls | None) -> TcpPeer:
    return TcpTransport(tls, "fingerprint", BLOCK_BYTES).connect(source(server))


def pull(peer: TcpPeer, keys: list[Key]) -> list[bytearray | None]:
    places = [bytearray(BLOCK_BYTES) for _ in keys]
    found = list(peer.pull(keys, [memoryview(place) for place in places]))
    return [place if is_done else None for place, is_done in zip(places, found, strict=True)]


def test_what_is_asked_for_comes(server: BlockServer, store: Store, tls: ClusterTls | None) -> None:
    peer = connect(server, tls)
    try:
        assert peer.session_tokens(CHAT) == struct.pack("<3i", 1, 2, 3)
        assert peer.session_tokens(CHAT._replace(salt="other")) is None
        assert peer.recent_sessions(5) == [CHAT]
        assert peer.held(KEYS) == [True, False] * 100
        many = KEYS * 3
        assert pull(peer, many) == [store.blocks.get(key) for key in many]
        assert server.num_given_blocks == 300
        assert pull(peer, []) == []
        store.is_busy = True  # a step takes long
        assert pull(peer, KEYS[:4]) == [None] * 4
    finally:
        peer.close()


@pytest.mark.parametrize(
    ("fingerprint", "block_bytes", "incarnation", "problem"),
    [
        ("other", BLOCK_BYTES, "engine", "another model"),
        ("fingerprint", 1, "engine", "blocks have 1 bytes"),
        ("fingerprint", BLOCK_BYTES, "one before", "has ended"),
    ],
)
def test_whose_blocks_are_of_no_use_is_refused(
    fingerprint: str, block_bytes: int, incarnation: str, problem: str, server: BlockServer, tls: ClusterTls | None
) -> None:
    with pytest.raises(PeerRefusedError, match=problem):
        TcpTransport(tls, fingerprint, block_bytes).connect(source(server, incarnation))
    assert server.num_refused == 1
    connect(server, tls).close()


def test_who_is_no_node_gets_nothing(store: Store, cluster: Path, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    server = BlockServer("tcp://127.0.0.1:0", ClusterTls(cluster, NODE), store, "fingerprint", BLOCK_BYTES, "engine")
    try:
        for wrong in (ClusterTls(cluster, GATEWAY), ClusterTls(tmp_path, NODE), None):
            with pytest.raises((OSError, ssl.SSLError)):
                connect(server, wrong).held(KEYS)
        connect(server, ClusterTls(cluster, NODE)).close()
    finally:
        server.close()


class Flipping:
    """A line on which one bit falls over."""

    def __init__(self, target: str, at: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = network_endpoint("127.0.0.1", self._listener.getsockname()[1])
        self._target, self._at = target, at
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        near = self._listener.accept()[0]
        far = socket.create_connection(network_address(self._target))
        threading.Thread(target=self._pump, args=(near, far, -1), daemon=True).start()
        self._pump(far, near, self._at)

    def _pump(self, source: socket.socket, sink: socket.socket, at: int) -> None:
        num_seen = 0
        try:
            while data := bytearray(source.recv(1 << 16)):
                if 0 <= at - num_seen < len(data):
                    data[at - num_seen] ^= 4
                num_seen += len(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()
            self._listener.close()


@pytest.mark.parametrize("at", [2000, 5100, 12_000, 14_990])
def test_a_bit_that_falls_over_is_noticed(at: int, server: BlockServer, store: Store, tls: ClusterTls | None) -> None:
    """By the digest; under TLS the connection ends."""
    cable = Flipping(server.endpoint, at)
    keys = KEYS[::2][:8]
    taken: list[bytearray | None] = []
    places = [bytearray(BLOCK_BYTES) for _ in keys]
    peer = None
    try:
        peer = TcpTransport(tls, "fingerprint", BLOCK_BYTES).connect(PeerSource(cable.endpoint, "engine"))
        for place, is_done in zip(places, peer.pull(keys, [memoryview(p) for p in places]), strict=False):
            taken.append(place if is_done else None)
    except OSError:
        assert tls is not None
    finally:
        if peer is not None:
            peer.close()
    assert all(block is None or block == store.blocks[key] for key, block in zip(keys, taken, strict=False))
    assert tls is not None or taken.count(None) == 1


def test_a_server_that_closes_hangs_up(server: BlockServer, tls: ClusterTls | None) -> None:
    peer = connect(server, tls)
    server.close()
    with pytest.raises(OSError):  # noqa: PT011 - whatever the system says of it
        pull(peer, KEYS)
    peer.close()
    with pytest.raises(OSError):  # noqa: PT011
        connect(server, tls)


def test_only_so_many_are_served_at_a_time(
    server: BlockServer, tls: ClusterTls | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_server, "MAX_CONNECTIONS", 2)
    first, second = connect(server, tls), connect(server, tls)
    with pytest.raises(OSError):  # noqa: PT011
        connect(server, tls)
    first.close()

    def has_room() -> bool:
        try:
            connect(server, tls).close()
        except OSError:
            return False
        return True

    wait_until(has_room, SECONDS)
    second.close()


# ---- the loop ----


def test_the_loop_makes_calls_for_others_and_none_that_nobody_waits_for() -> None:
    woken = threading.Semaphore(0)
    calls = LoopCalls(woken.release)
    made: list[int] = []
    results: list[object] = []

    def ask(number: int, seconds: float) -> None:
        try:
            results.append(calls.call(lambda: made.append(number) or number, seconds))
        except (TimeoutError, ZeroDivisionError) as error:
            results.append(type(error))

    late = threading.Thread(target=ask, args=(1, 0.01))
    late.start()
    late.join()
    calls.serve()
    assert (made, results) == ([], [TimeoutError])
    asking = threading.Thread(target=ask, args=(2, SECONDS))
    asking.start()
    assert woken.acquire(timeout=SECONDS)
    wait_until(lambda: (calls.serve(), bool(made))[1], SECONDS)
    asking.join()
    assert (made, results) == ([2], [TimeoutError, 2])
    failing = threading.Thread(target=lambda: results.append(_raised(lambda: calls.call(lambda: 1 // 0, SECONDS))))
    failing.start()
    wait_until(lambda: (calls.serve(), not failing.is_alive())[1], SECONDS)
    assert results[-1] is ZeroDivisionError
    calls.post(lambda: made.append(3))
    calls.serve()
    assert made == [2, 3]
    calls.close()
    ask(4, SECONDS)
    assert results[-1] is TimeoutError


def _raised(call: object) -> type[Exception] | None:
    assert callable(call)
    try:
        call()
    except ZeroDivisionError as error:
        return type(error)
    return None
