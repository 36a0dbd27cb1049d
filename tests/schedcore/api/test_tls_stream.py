"""Frames through TLS: cut anywhere by the network, in company of a handshake, and from who does not read."""

from __future__ import annotations

import random
import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fleet.certificates import make_certificates
from schedcore.api.cluster_tls import GATEWAY, NODE, ClusterTls
from schedcore.api.frame_socket import FrameSocket
from schedcore.api.tls_stream import TlsStream

Ends = tuple[FrameSocket, FrameSocket]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls") / "cluster"
    make_certificates(folder)
    return folder


class Wire:
    """Two sockets and a network between them that cuts as it likes."""

    def __init__(self, cluster: Path) -> None:
        self._pairs = [socket.socketpair(), socket.socketpair()]
        self.dialer = ClusterTls(cluster, GATEWAY).dialed(self._pairs[0][0], NODE)
        self.accepter = ClusterTls(cluster, NODE).accepted(self._pairs[1][0])
        for _, network in self._pairs:
            network.setblocking(False)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        for near, network in self._pairs:
            near.close()
            network.close()

    def carry(self, num_bytes: int = 1 << 16) -> None:
        """Up to so many in each direction."""
        (_, left), (_, right) = self._pairs
        for source, target in ((left, right), (right, left)):
            with suppress(BlockingIOError):
                target.sendall(source.recv(num_bytes))

    def shake(self, num_bytes: int = 1 << 16) -> None:
        is_done = {self.dialer: False, self.accepter: False}
        while not all(is_done.values()):
            for stream in is_done:
                try:
                    stream.do_handshake()
                    is_done[stream] = True
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    pass
            self.carry(num_bytes)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=8), st.integers(1, 400), st.integers(1, 3000))
def test_frames_arrive_whole_and_in_order_however_they_are_cut(
    cluster: Path, frames: list[bytes], size: int, handshake_size: int
) -> None:
    with Wire(cluster) as line:
        line.shake(handshake_size)
        there, back = FrameSocket(line.dialer), FrameSocket(line.accepter)
        for frame in frames:
            there.send(frame)
            back.send(frame[::-1])
        heard: tuple[list[bytes], list[bytes]] = ([], [])
        while min(map(len, heard)) < len(frames):
            line.carry(size)
            heard[0].extend(back.receive())
            heard[1].extend(there.receive())
        assert heard == (frames, [frame[::-1] for frame in frames])


def test_what_comes_with_the_end_of_a_handshake_is_there_at_once(cluster: Path) -> None:
    """No poll tells of it: the bytes have been read."""
    with Wire(cluster) as line:
        dialer = line.dialer
        while True:
            try:
                dialer.do_handshake()
                break
            except ssl.SSLWantReadError:
                line.carry()
                try:
                    line.accepter.do_handshake()
                except ssl.SSLWantReadError:
                    line.carry()
        FrameSocket(dialer).send(b"at once")
        line.carry()
        line.accepter.do_handshake()
        assert not select.select([line.accepter], [], [], 0)[0]
        framed = FrameSocket(line.accepter)
        line.carry()  # tickets go the other way, or the end would be a reset
        line._pairs[1][1].close()  # and was the last that it said
        assert framed.receive() == [b"at once"]
        with pytest.raises(ConnectionError):
            framed.receive()


@pytest.fixture
def ends(cluster: Path) -> Iterator[Ends]:
    """Over TCP, without anything between them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    streams = ClusterTls(cluster, GATEWAY).dialed(near, NODE), ClusterTls(cluster, NODE).accepted(far)
    shake_over_tcp(*streams)
    with closing(FrameSocket(streams[0])) as one, closing(FrameSocket(streams[1])) as other:
        yield one, other


def shake_over_tcp(*streams: TlsStream) -> None:
    left = list(streams)
    while left:
        for stream in list(left):
            try:
                stream.do_handshake()
                left.remove(stream)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                select.select([], [], [], 0.001)


def test_what_a_peer_does_not_read_waits_and_nothing_is_lost(ends: Ends) -> None:
    one, other = ends
    chance = random.Random(3)
    frames = [chance.randbytes(chance.choice((10, 20_000, 3_000_000))) for _ in range(40)]
    for frame in frames:
        one.send(frame)
    assert one.has_unsent
    received: list[bytes] = []
    while len(received) < len(frames):
        if one.has_unsent:
            one.flush()
        received += other.receive()
    assert received == frames
    assert not one.has_unsent
    assert other.receive() == []


def test_a_peer_that_is_gone_is_noticed_after_its_last_frame(ends: Ends) -> None:
    one, other = ends
    one.send(b"bye")
    one.close()
    select.select([other], [], [], 10)
    assert other.receive() == [b"bye"]
    with pytest.raises(ConnectionError):
        other.receive()
    with pytest.raises(ConnectionError):
        say_often(other)


def say_often(framed: FrameSocket) -> None:
    """The first frame may still be taken."""
    for _ in range(10):
        framed.send(b"hello?")
        select.select([], [], [], 0.01)


def test_who_changes_a_byte_on_the_way_is_hung_up_on(cluster: Path) -> None:
    with Wire(cluster) as line:
        line.shake()
        FrameSocket(line.dialer).send(b"a message")
        (_, left), (_, right) = line._pairs
        sent = bytearray(left.recv(1 << 16))
        sent[-1] ^= 1
        right.sendall(sent)
        with pytest.raises(ConnectionError, match="lost"):
            FrameSocket(line.accepter).receive()


def test_who_hangs_up_within_the_handshake_is_noticed(cluster: Path) -> None:
    with Wire(cluster) as line:
        with pytest.raises(ssl.SSLWantReadError):
            line.accepter.do_handshake()
        line._pairs[1][1].close()
        with pytest.raises(ConnectionResetError):
            line.accepter.do_handshake()
