"""A fleet by rate: what must hold of any, and how far it is from nodes with the real scheduler."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from test_layering import ROOT, imported_modules, tracked

from schedcore.routing.route import ROUTINGS
from schedcore.simulation.cost_model import find_cost, linear_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.fleet.fleet import (
    Fleet,
    FleetResult,
    fleet_trace,
    prefix_keys_of,
    simulate_fleet,
)
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.simulator import simulate
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.traces import read_trace
from schedcore.simulation.workloads.workload import Workload, make_workload

GIB = 2**30
MOONCAKE = ROOT / "tests" / "data" / "mooncake_conversation_cut.csv"
SHAPE = model_shape("llama-3-8b")


def engine(**options: Any) -> SimulatedEngine:
    cost = find_cost(SHAPE, "a100")
    return SimulatedEngine(model=SHAPE, cost=cost, memory_bytes=80 * GIB, max_model_len=65_536, options=options)


def conversations(num_sessions: int, num_turns: int, gap_s: float, seed: int = 0) -> tuple[Workload, Any]:
    """Every turn adds 300 tokens or so to the prompt before it and comes some time later."""
    rng = np.random.default_rng(seed)
    rows = []
    for session in range(num_sessions):
        at, length = float(rng.uniform(0, gap_s)), 0
        for _ in range(num_turns):
            length += int(rng.integers(200, 400))
            rows.append((at, session, length))
            at += float(rng.exponential(gap_s))
    rows.sort()
    prompts = Prompts.from_runs([[(session, length)] for _, session, length in rows], [r[1] for r in rows])
    workload = make_workload([r[0] for r in rows], prompts, rng.integers(20, 120, len(rows)), source="made")
    return workload, np.array([r[1] for r in rows], np.int64)


def run(routing: str = "cost", num_nodes: int = 4, seed: int = 0, load: int = 60, **fields: Any) -> FleetResult:
    workload, sessions = conversations(load, 5, 8.0, seed)
    fleet = Fleet(engine=engine(), num_nodes=num_nodes, routing=routing, tokens_per_key=64, **fields)
    return simulate_fleet(fleet, fleet_trace(workload, sessions, 64), seed=seed)


def columns(result: FleetResult) -> list[Any]:
    return [result.ttft_s, result.e2e_s, result.num_cached, result.node, result.pulled_bytes]


@pytest.mark.parametrize("routing", [name for name in ROUTINGS if name != "prefill_decode"])
def test_every_request_ends_once_and_twice_the_same(routing: str) -> None:
    first, second = run(routing, lead_s=4.0), run(routing, lead_s=4.0)
    assert all(np.array_equal(a, b) for a, b in zip(columns(first), columns(second), strict=True))
    assert np.isfinite(first.e2e_s).all()
    assert ((first.ttft_s > 0) & (first.ttft_s <= first.e2e_s)).all()
    assert ((first.num_cached >= 0) & (first.num_cached < first.num_tokens)).all()
    assert set(first.node) <= set(range(4))
    computed = (first.num_tokens - first.num_cached).sum()
    assert first.computed_tokens.sum() == pytest.approx(computed)


def test_one_request_takes_what_the_latency_model_says() -> None:
    engine = SimulatedEngine(model=SHAPE, cost=linear_cost("linear", 5.0, 0.05, 0.1, 0.0, 0.0), memory_bytes=80 * GIB)
    prompts = Prompts.unrelated([5000])
    trace = fleet_trace(make_workload([0.0], prompts, [11], source="one"), np.array([0]), 64)
    result = simulate_fleet(Fleet(engine=engine, num_nodes=1), trace)
    budget = engine.scheduler_config(1).max_num_batched_tokens
    steps = -(-5000 // budget)
    assert result.ttft_s[0] == pytest.approx(steps * 0.005 + 5000 * 0.00005, rel=1e-4)
    assert result.e2e_s[0] - result.ttft_s[0] == pytest.approx(10 * (0.005 + 0.00005 + 0.0001), rel=1e-4)


def test_a_conversation_that_stays_finds_its_prompts_and_one_that_is_dealt_around_does_not() -> None:
    def cached(result: FleetResult) -> float:
        return float(result.num_cached.sum() / result.num_tokens.sum())

    dealt = cached(run("round_robin", can_pull=False))
    assert cached(run("cost", can_pull=False)) > 0.55 > dealt + 0.1
    assert cached(run("sticky", can_pull=False)) > 0.55
    assert cached(run("round_robin")) > 0.5  # it is pulled
    assert run("round_robin").pulled_bytes > run("cost").pulled_bytes


def test_stale_tables_and_several_gateways_spread_load_all_the_same() -> None:
    fresh = run("cost", num_nodes=8, load=300, report_interval_s=0.05, report_delay_s=0.01).report()
    stale = run("cost", num_nodes=8, load=300, report_interval_s=0.5, report_delay_s=0.4, num_gateways=4).report()
    assert stale.request_spread < 1.5
    assert stale.ttft_p99_ms < 3 * fresh.ttft_p99_ms + 100


def test_copies_share_the_common_keys_only() -> None:
    workload = make_workload([0.0, 5.0], Prompts.from_runs([[(1, 512)], [(1, 512)]], [8, 9]), [4, 4], source="x")
    trace = fleet_trace(workload, np.array([0, 1]), 64)
    fleet = Fleet(engine=engine(), num_nodes=1, tokens_per_key=64)
    for num_common, cached in ((0, 0), (3, 192), (8, 511)):
        result = simulate_fleet(fleet, trace, num_copies=2, num_common_keys=num_common, spread_s=1.0)
        assert sorted(result.num_cached)[1] == cached
        assert sorted(result.num_cached)[2:] == [511, 511]


def test_keys_are_equal_where_prompts_are() -> None:
    prompts = Prompts.from_runs([[(1, 100), (2, 200)], [(1, 130)], [(1, 100), (2, 164), (3, 300)]], [7, 8, 9])
    offsets, keys = prefix_keys_of(prompts, 32)
    first, second, third = (list(keys[a:b]) for a, b in itertools.pairwise(offsets))
    assert [len(first), len(second), len(third)] == [6, 4, 9]
    assert first[:3] == second[:3] == third[:3]
    assert first[3] == third[3] != second[3]
    assert first[4] == third[4]
    assert first[5] != third[5]


@pytest.mark.parametrize("seed", [0, 1])
def test_one_node_by_rate_is_near_the_real_scheduler(seed: int) -> None:
    """Independent requests, two thirds of what the engine can do: mean TTFT within a fifth, E2E within a tenth."""
    trace = read_trace(Path(MOONCAKE)).fitting(16_384)
    workload = trace.sampled_workload(ArrivalProcess(1.2), 300, seed)
    one = engine()
    real = simulate(workload, one.with_policy("fcfs")).records
    result = simulate_fleet(Fleet(engine=one, num_nodes=1), fleet_trace(workload, np.arange(len(workload)), 128))
    assert result.ttft_s.mean() == pytest.approx(float((real.first_token_s - real.arrival_s).mean()), rel=0.2)
    assert result.e2e_s.mean() == pytest.approx(float((real.last_token_s - real.arrival_s).mean()), rel=0.1)


def test_a_report_is_plain_values() -> None:
    report = run().report(ttft_target_s=1.0)
    assert msgspec.json.decode(msgspec.json.encode(report))["num_requests"] == 300
    assert 0 < report.ttft_attained_ratio <= 1
    assert report.busy_spread >= 1.0


def test_who_is_ready_and_does_not_fit_waits_behind_one_whose_blocks_are_on_their_way() -> None:
    """The node once looked for something to begin again and again, at one moment."""
    one = replace(engine(), memory_bytes=18 * GIB)  # room for some ten thousand tokens
    rows = [(0.0, 1, 8000, 1), (5.0, 2, 8000, 1), (10.0, 3, 6000, 500), (12.0, 1, 8000, 1), (12.01, 4, 5000, 1)]
    prompts = Prompts.from_runs([[(session, length)] for _, session, length, _ in rows], [r[1] for r in rows])
    workload = make_workload([r[0] for r in rows], prompts, [r[3] for r in rows], source="made")
    trace = fleet_trace(workload, np.array([r[1] for r in rows], np.int64), 64)
    result = simulate_fleet(Fleet(engine=one, num_nodes=1, tokens_per_key=64, host_bytes=10**10), trace)
    assert np.isfinite(result.e2e_s).all()
    assert result.num_cached[3] > 7000
    assert (result.ttft_s[3:] > 1.0).all(), "until the long answer has ended"


def test_what_makes_no_sense_is_said() -> None:
    workload, sessions = conversations(2, 2, 1.0)
    trace = fleet_trace(workload, sessions, 64)
    with pytest.raises(ValueError, match="least_loaded"):
        Fleet(engine=engine(), num_nodes=1, routing="random")
    with pytest.raises(ValueError, match="node"):
        simulate_fleet(Fleet(engine=engine(), num_nodes=0), trace)
    with pytest.raises(ValueError, match="reports"):
        simulate_fleet(Fleet(engine=engine(), num_nodes=1, report_delay_s=1.0), trace)
    with pytest.raises(ValueError, match="times of their own"):
        fleet_trace(replace(workload, follows=np.arange(-1, 3, dtype=np.int32)), sessions, 64)


def test_the_simulator_calls_the_gateway_s_route_and_has_none_of_its_own() -> None:
    users = {path.name for path in tracked("schedcore/simulation/*.py")
             if "schedcore.routing.route.route" in imported_modules(path)}  # fmt: skip
    assert "cluster.py" in users
    loop = (ROOT / "cpp/core/simulation/fleet/fleet_loop.cpp").read_text()
    assert "= route(request" in loop
    sources = [p.read_text() for p in tracked("schedcore/simulation/*.py", "cpp/core/simulation/fleet/*")]
    assert not any("def least_loaded" in source or "def route(" in source for source in sources)
