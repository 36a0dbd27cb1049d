"""Frames over a stream that may cut them anywhere."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedcore.api.frame_socket import FrameSocket, connect, listen

DEADLINE_SECONDS = 30.0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, FrameSocket]]:
    raw, other = socket.socketpair()
    with raw:
        framed = FrameSocket(other)
        yield raw, framed
        framed.close()


def encoded(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "little") + frame for frame in frames)


def receive(framed: FrameSocket) -> list[bytes]:
    assert select.select([framed], [], [], DEADLINE_SECONDS)[0]
    return framed.receive()


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=8), st.data())
def test_frames_arrive_whole_and_in_order_however_they_are_cut(frames: list[bytes], data: st.DataObject) -> None:
    raw, other = socket.socketpair()
    stream, received = encoded(*frames), []
    with raw, closing(FrameSocket(other)) as framed:
        while stream:
            size = data.draw(st.integers(1, len(stream)))
            raw.sendall(stream[:size])
            stream = stream[size:]
            received += receive(framed)
    assert received == frames


def test_what_a_peer_does_not_read_waits_and_nothing_is_lost(ends: tuple[socket.socket, FrameSocket]) -> None:
    raw, framed = ends
    frames = [bytes([i % 256]) * 10_000 for i in range(200)]
    for frame in frames:
        framed.send(frame)
    assert framed.has_unsent
    expected, received = encoded(*frames), bytearray()
    while len(received) < len(expected):
        received += raw.recv(1 << 16)
        framed.flush()
    assert received == expected
    assert not framed.has_unsent


def test_called_for_nothing_it_receives_nothing(ends: tuple[socket.socket, FrameSocket]) -> None:
    assert ends[1].receive() == []


def test_a_peer_that_is_gone_is_noticed_after_its_last_frame(ends: tuple[socket.socket, FrameSocket]) -> None:
    raw, framed = ends
    raw.sendall(encoded(b"bye"))
    raw.close()
    assert receive(framed) == [b"bye"]
    with pytest.raises(ConnectionError):
        framed.receive()
    with pytest.raises(ConnectionError):
        framed.send(b"hello?")


def test_a_line_that_carries_something_else_is_given_up(ends: tuple[socket.socket, FrameSocket]) -> None:
    raw, framed = ends
    raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(ConnectionError, match="cannot be meant"):
        receive(framed)


def test_endpoints(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path / 'engine'}"
    with pytest.raises(FileNotFoundError):
        connect(endpoint)
    with listen(endpoint) as listener:
        framed = connect(endpoint)
        framed.send(b"hello")
        accepted = FrameSocket(listener.accept()[0])
        assert receive(accepted) == [b"hello"]
        for end in (framed, accepted):
            end.close()
    with pytest.raises(ValueError, match="ipc://"):
        connect("tcp://127.0.0.1:1")
