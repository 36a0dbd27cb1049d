"""Simulated clusters: users, routers and real schedulers under one virtual clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from schedcore.simulation.cost_model import find_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.fleet.chat_users import ChatUser, Round, pause
from schedcore.simulation.fleet.cluster import Cluster, ClusterResult, simulate_cluster
from schedcore.simulation.fleet.cluster_node import NodeMemory
from schedcore.simulation.fleet.event_queue import Channel, EventQueue
from schedcore.simulation.model_shape import model_shape

GIB = 2**30
CONVERSATIONS = [[Round(400, 60), Round(30, 80), Round(50, 40)], [Round(900, 30), Round(20, 30)], [Round(64, 16)]]
HOST = NodeMemory(16 * GIB, has_disk=False)
ALL = NodeMemory(16 * GIB, has_disk=True)


def engine(**options: Any) -> SimulatedEngine:
    shape = model_shape("llama-3.1-8b")
    whole = SimulatedEngine(model=shape, cost=find_cost(shape, "a100"), memory_bytes=24 * GIB, max_model_len=4096)
    return whole.with_policy("fcfs", **options)


def run(routing: str, memory: NodeMemory = ALL, users: int = 12, missed: float = 0.0, **options: Any) -> ClusterResult:
    cluster = Cluster(
        engine=engine(**options), memory=memory, num_nodes=3, nodes_per_machine=2, routing=routing, missed_ratio=missed
    )
    return simulate_cluster(cluster, users, CONVERSATIONS, seconds=120.0, warm_up=30.0, seed=3)


def cached(result: ClusterResult) -> float:
    return float(result.num_cached.sum() / result.num_prompt.sum())


def test_events_happen_in_order_of_time_and_of_arrival() -> None:
    time, seen = EventQueue(), []
    for at, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (9.0, "never")):
        time.at(at, lambda name=name: seen.append((time.now, name)))
    time.run(5.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert time.now == 5.0


def test_a_channel_sends_one_after_the_other() -> None:
    channel = Channel(10.0)
    assert [channel.send(20, 0.0), channel.send(10, 1.0), channel.send(10, 9.0)] == [2.0, 3.0, 10.0]


def test_users_hold_whole_conversations_and_the_same_ones_again() -> None:
    def rounds(user: ChatUser) -> list[tuple[Round | None, Round]]:
        return [user.next_round() for _ in range(20)]

    seen = rounds(ChatUser(5, CONVERSATIONS, seed=1))
    assert seen == rounds(ChatUser(5, CONVERSATIONS, seed=1))
    assert seen != rounds(ChatUser(6, CONVERSATIONS, seed=1))
    for previous, turn in seen:
        following = [(a, b) for c in CONVERSATIONS for a, b in zip([None, *c], c, strict=False)]
        assert (previous, turn) in following


def test_typing_takes_as_long_as_the_paper_says_on_average() -> None:
    turns = [turn for c in CONVERSATIONS for turn in c]
    mean_new = float(np.mean([turn.num_new for turn in turns]))
    typing = [pause(Round(1, 53), turn, mean_new) for turn in turns]
    assert np.mean([p.typing for p in typing]) == pytest.approx(11.3)
    assert typing[0].before_typing == pytest.approx(10.0)


def test_the_same_arguments_give_the_same_result() -> None:
    first, second = run("advised"), run("advised")
    assert np.array_equal(first.e2e, second.e2e)
    assert np.array_equal(first.num_cached, second.num_cached)


def test_recomputing_finds_nothing_and_tiers_find_the_conversation() -> None:
    assert cached(run("least_loaded", NodeMemory(0, False), enable_prefix_caching=False)) == 0.0
    for result in (run("sticky", HOST), run("advised")):
        assert cached(result) > 0.3


def test_a_conversation_that_moves_takes_its_cache_along() -> None:
    moved = run("least_loaded", ALL)
    stayed = run("least_loaded", HOST)  # without a disk nobody else can fetch it
    assert cached(moved) > cached(stayed)


def test_times_are_those_of_turns_that_were_served() -> None:
    result = run("advised")
    assert len(result.ttft) > 20
    assert np.all((result.ttft > 0) & (result.ttft <= result.e2e))
    assert np.all((result.busy > 0) & (result.busy <= 1.0))
    assert result.imbalance >= 1.0


def test_a_missed_advisory_costs_time_but_no_turn() -> None:
    everything, nothing = run("advised", users=24), run("advised", users=24, missed=1.0)
    assert len(nothing.ttft) > 0.9 * len(everything.ttft)
    assert np.mean(nothing.ttft) >= np.mean(everything.ttft)


def test_an_unknown_routing_is_said() -> None:
    with pytest.raises(ValueError, match="least_loaded"):
        Cluster(engine=engine(), memory=ALL, routing="random")
