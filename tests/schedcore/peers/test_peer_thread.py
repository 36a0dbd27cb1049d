"""A peer's thread: every task ends, whatever becomes of the peer, of the task, and of the thread."""

from __future__ import annotations

import threading

import pytest

from fakes.eventually import wait_until
from schedcore.api.types import PeerSource
from schedcore.peers import peer_thread
from schedcore.peers.block_transport import PeerBlocks
from schedcore.peers.peer_thread import PeerThread
from schedcore.peers.tcp_transport import PeerRefusedError

SOURCE = PeerSource("tcp://127.0.0.1:1", "a")
SECONDS = 30.0


class Blocks:
    """A connection."""

    def __init__(self) -> None:
        self.is_interrupted = threading.Event()
        self.is_closed = False

    def interrupt(self) -> None:
        self.is_interrupted.set()

    def close(self) -> None:
        self.is_closed = True


class Transport:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.made: list[Blocks] = []

    def connect(self, source: PeerSource) -> PeerBlocks:
        if self.error is not None:
            raise self.error
        self.made.append(Blocks())
        return self.made[-1]  # type: ignore[return-value]


class Task:
    def __init__(self, error: Exception | None = None, *, is_long: bool = False) -> None:
        self.error, self.is_long = error, is_long
        self.has_begun = threading.Event()
        self.ends: list[str] = []

    def run(self, peer: PeerBlocks) -> None:
        self.has_begun.set()
        if self.is_long:
            assert isinstance(peer, Blocks)
            assert peer.is_interrupted.wait(SECONDS)
            raise ConnectionResetError
        if self.error is not None:
            raise self.error
        self.ends.append("done")

    def fail(self, *, is_refused: bool) -> None:
        self.ends.append("refused" if is_refused else "failed")


def carry_out(thread: PeerThread, *tasks: Task) -> list[list[str]]:
    for task in tasks:
        assert thread.put(task)
    wait_until(lambda: not thread.is_busy, SECONDS)
    return [task.ends for task in tasks]


def test_what_fails_costs_itself_and_the_connection() -> None:
    transport = Transport()
    thread = PeerThread(SOURCE, transport)
    try:
        assert carry_out(thread, Task(), Task(), Task(ConnectionResetError())) == [["done"], ["done"], ["failed"]]
        assert [blocks.is_closed for blocks in transport.made] == [True]
        assert carry_out(thread, Task(RuntimeError("a mistake")), Task()) == [["failed"], ["done"]]
        assert [blocks.is_closed for blocks in transport.made] == [True, True, False]
    finally:
        thread.close()
    assert transport.made[-1].is_closed
    assert not thread.put(Task())


def test_who_is_refused_is_not_asked_again_and_who_is_away_is() -> None:
    transport = Transport(ConnectionRefusedError())
    thread = PeerThread(SOURCE, transport)
    try:
        assert carry_out(thread, Task()) == [["failed"]]
        transport.error = PeerRefusedError("another model")
        assert carry_out(thread, Task()) == [["refused"]]
        transport.error = None
        assert carry_out(thread, Task()) == [["refused"]]
        assert not transport.made
    finally:
        thread.close()


def test_closing_ends_what_is_under_way_and_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_thread, "MAX_TASKS", 2)
    thread = PeerThread(SOURCE, Transport())
    first, second, third = Task(is_long=True), Task(), Task()
    assert thread.put(first)
    assert first.has_begun.wait(SECONDS)
    assert thread.put(second)
    assert thread.put(third)
    assert not thread.put(Task()), "too many wait"
    thread.close()
    assert [first.ends, second.ends, third.ends] == [["failed"]] * 3
