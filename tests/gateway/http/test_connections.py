"""Who may keep a server waiting, for how long, and who gives way."""

from __future__ import annotations

import logging

import pytest

from fakes.manual_clock import ManualClock
from gateway.http.connections import ConnectionLimits, Connections
from gateway.http.descriptors import max_connections
from gateway.metrics.connection_metrics import ConnectionMetrics


class FakePeer:
    def __init__(self) -> None:
        self.unsent = 0
        self.is_refused = False
        self.is_aborted = False

    def num_unsent_bytes(self) -> int:
        return self.unsent

    def refuse_head(self) -> None:
        self.is_refused = True

    def abort(self) -> None:
        self.is_aborted = True


class Gate:
    """Three connections and two reserved ones; heads may take 20 s, the next request 600 s."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = ConnectionMetrics()
        limits = ConnectionLimits(3, head_seconds=20, idle_seconds=600, stall_seconds=60, num_reserved=2)
        self.connections = Connections(limits, self.metrics, self.clock)

    def arrive(self) -> FakePeer:
        self.connections.make_room()
        peer = FakePeer()
        self.connections.add(peer)
        return peer

    def serve(self) -> FakePeer:
        peer = self.arrive()
        self.connections.begin_serving(peer)
        return peer

    def idle(self) -> FakePeer:
        peer = self.serve()
        self.connections.begin_idling(peer)
        return peer

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.connections.sweep()


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_silence_and_half_heads_end_after_the_heads_time(gate: Gate) -> None:
    peer = gate.arrive()
    gate.wait(19.9)
    assert not peer.is_refused
    gate.wait(0.2)
    assert peer.is_refused
    assert gate.metrics.num_closed["head_timeout"] == 1


def test_a_client_that_does_not_take_the_refusal_is_cut_off(gate: Gate) -> None:
    peer = gate.arrive()
    gate.wait(20)
    assert not peer.is_aborted
    gate.wait(5)
    assert peer.is_aborted


def test_who_is_served_is_never_cut(gate: Gate) -> None:
    peer = gate.serve()
    gate.wait(100_000)
    for _ in range(10):
        gate.arrive()
    assert not peer.is_aborted
    assert not peer.is_refused


def test_idle_connections_end_after_their_time(gate: Gate) -> None:
    peer = gate.idle()
    gate.wait(599)
    assert not peer.is_aborted
    gate.wait(1)
    assert peer.is_aborted


def test_dripped_heads_gain_no_time(gate: Gate) -> None:
    """What a connection calls is begin_head, once per head: the first byte counts."""
    peer = gate.idle()
    gate.wait(100)
    gate.connections.begin_head(peer)
    gate.wait(19)
    assert not peer.is_refused
    gate.wait(1)
    assert peer.is_refused


def test_a_slow_head_gives_way_before_an_idle_client(gate: Gate) -> None:
    idle, slow, quick = gate.idle(), gate.arrive(), gate.serve()
    for _ in range(2):
        gate.serve()
    gate.wait(2)
    gate.arrive()
    assert (idle.is_aborted, slow.is_aborted, quick.is_aborted) == (False, True, False)


def test_who_is_idle_for_longest_gives_way(gate: Gate) -> None:
    first, second = gate.idle(), gate.idle()
    gate.connections.begin_serving(first)
    gate.connections.begin_idling(first)
    for _ in range(3):
        gate.serve()
    gate.arrive()
    assert (first.is_aborted, second.is_aborted) == (False, True)
    assert gate.metrics.num_closed["made_room"] == 1


def test_an_answer_that_is_not_yet_read_is_left_to_its_client(gate: Gate) -> None:
    reading, idle = gate.idle(), gate.idle()
    reading.unsent = 100
    for _ in range(3):
        gate.serve()
    gate.arrive()
    assert (reading.is_aborted, idle.is_aborted) == (False, True)


def test_heads_on_their_way_give_way_last(gate: Gate) -> None:
    peers = [gate.arrive() for _ in range(4)]
    idle = gate.idle()
    gate.arrive()
    assert idle.is_aborted
    gate.arrive()
    assert [peer.is_aborted for peer in peers] == [True, False, False, False]


def test_when_all_places_are_served_only_the_reserved_ones_remain(gate: Gate) -> None:
    for _ in range(3):
        gate.serve()
        assert not gate.connections.is_crowded
    for _ in range(2):
        assert not gate.connections.is_full
        gate.serve()
        assert gate.connections.is_crowded
    assert gate.connections.is_full


def test_client_that_reads_nothing_is_cut_off_and_a_slow_one_is_not(gate: Gate) -> None:
    deaf, slow = gate.serve(), gate.serve()
    for peer in (deaf, slow):
        peer.unsent = 100_000
        gate.connections.begin_stalling(peer)
    for _ in range(3):
        slow.unsent -= 1000
        gate.wait(60)
    assert deaf.is_aborted
    assert not slow.is_aborted
    gate.connections.end_stalling(slow)
    gate.wait(1000)
    assert not slow.is_aborted


def test_nothing_is_left_of_a_connection(gate: Gate) -> None:
    peers = [gate.arrive(), gate.idle(), gate.serve()]
    gate.connections.begin_stalling(peers[2])
    gate.connections.begin_leaving(peers[1])
    for peer in peers:
        gate.connections.remove(peer)
    gate.wait(10_000)
    assert not any(peer.is_aborted or peer.is_refused for peer in peers)
    assert len(gate.connections) == gate.metrics.num_open == 0


def test_the_log_has_one_line_per_kind_and_interval(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="hocket.gateway"):
        for _ in range(3):
            gate.serve()
        for _ in range(1000):
            gate.connections.count("refused", "refused")
        assert len(caplog.records) == 1
        gate.clock.advance(11)
        gate.connections.count("refused", "refused")
    assert caplog.records[-1].message == "refused (999 more like this)"


@pytest.mark.parametrize(("limit", "in_use", "most"), [(65_536, 40, 8192), (1024, 40, 452), (128, 30, 25), (64, 40, 1)])
def test_connections_leave_descriptors_for_others(limit: int, in_use: int, most: int) -> None:
    assert max_connections(8192, limit, in_use) == most
