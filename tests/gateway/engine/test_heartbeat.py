"""Silence is counted in turns of our own clock: who was stopped himself blames nobody."""

from __future__ import annotations

from collections.abc import Callable

from gateway.engine.heartbeat import TURNS, Heartbeat


class ManualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Peer:
    """Answers what it is asked; the answer waits until somebody listens."""

    def __init__(self, limit_seconds: float = 8.0) -> None:
        self.num_asked = self.num_heard = 0
        self.is_silent = self.has_hung = False
        self.delays: list[float] = []
        self._timer: ManualTimer | None = None
        self.heartbeat = Heartbeat(limit_seconds, self._listen, self._ask, self._on_silence, self._call_later)
        self.heartbeat.start()

    def turn(self, num_turns: int = 1) -> None:
        for _ in range(num_turns):
            timer, self._timer = self._timer, None
            if timer is not None and timer.callback is not None:
                timer.callback()

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> ManualTimer:
        self.delays.append(seconds)
        self._timer = ManualTimer(callback)
        return self._timer

    def _listen(self) -> None:
        if self.num_asked > self.num_heard and not self.is_silent:
            self.num_heard = self.num_asked
            self.heartbeat.note()

    def _ask(self) -> None:
        self.num_asked += 1

    def _on_silence(self) -> None:
        self.has_hung = True


def test_a_peer_that_answers_lives() -> None:
    peer = Peer()
    peer.turn(100 * TURNS)
    assert not peer.has_hung
    assert peer.num_heard > 10


def test_a_silent_peer_is_asked_and_has_hung_after_the_limit() -> None:
    peer = Peer(8.0)
    peer.turn(5)
    peer.is_silent = True
    peer.turn(TURNS - 1)
    assert not peer.has_hung
    peer.turn(3)
    assert peer.has_hung
    assert sum(peer.delays[-TURNS:]) == 8.0
    peer.turn(5)
    assert peer.num_asked < 3 * TURNS  # nobody is asked for ever


def test_who_talks_is_not_asked() -> None:
    peer = Peer()
    for _ in range(10 * TURNS):
        peer.turn()
        peer.heartbeat.note()
    assert peer.num_asked <= 10 * TURNS
    assert not peer.has_hung


def test_an_answer_that_waits_is_heard_before_it_is_judged() -> None:
    peer = Peer()
    peer.is_silent = True
    peer.turn(TURNS)
    peer.is_silent = False  # we were stopped; it has answered meanwhile
    peer.turn(3)
    assert not peer.has_hung


def test_it_can_be_switched_off_and_stopped() -> None:
    assert not Peer(0).delays
    peer = Peer()
    peer.heartbeat.stop()
    peer.heartbeat.stop()
    peer.is_silent = True
    peer.turn(5 * TURNS)
    assert not peer.has_hung
