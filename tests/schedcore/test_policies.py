"""Every policy in an overloaded mixed simulation: all requests end once, the same bytes again, and the twin agrees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fakes.simulation_twin import run_twin
from schedcore._core import Estimates, SchedulerConfig, SimulatedOutcome, simulation
from schedcore.api.config import POLICIES
from schedcore.api.types import RequestClass
from schedcore.simulation.cost_model import linear_cost
from schedcore.simulation.simulator import request_columns
from schedcore.simulation.workloads.token_ids import Prompts, StreamKind, stream_id
from schedcore.simulation.workloads.workload import Workload, make_workload, merge

COST = linear_cost("with contexts", 3.0, 0.4, -0.1, 0.003, 0.0007)
NUM_BLOCKS = 60  # of 4 tokens; the workload wants several times as many at once


def config(policy: str, **fields: Any) -> SchedulerConfig:
    defaults: dict[str, Any] = {"num_layers": 4, "block_size": 4, "max_model_len": 160, "max_num_waiting": 1000}
    defaults |= {"max_num_batched_tokens": 64, "max_num_seqs": 24, "max_wait_ms": 500, "max_offline_wait_ms": 2000}
    return SchedulerConfig(num_units=2 * NUM_BLOCKS, policy=policy, **{**defaults, **fields})


def estimates() -> Estimates:
    return Estimates(latency=COST.to_core(), host_bytes_per_second=1e5, unit_bytes=100.0)


def overload(seed: int) -> Workload:
    """Conversations of three turns, unrelated requests in three priorities, and offline work in families."""
    rng = np.random.default_rng(seed)
    follows, runs, continuations, outputs = [], [], [], []
    for session in range(10):
        stream, length = stream_id(StreamKind.SESSION, session), 0
        for turn in range(3):
            length += int(rng.integers(1, 20))
            follows.append(len(runs) - 1 if turn else -1)
            runs.append([(stream, length)])
            continuations.append(stream)
            outputs.append(int(rng.integers(1, 15)))
            length += outputs[-1]
    talks = make_workload(
        rng.exponential(0.1, len(runs)), Prompts.from_runs(runs, continuations), outputs, follows=follows
    )
    single = make_workload(
        rng.uniform(0, 0.5, 40), Prompts.unrelated(rng.integers(1, 100, 40).tolist()), rng.integers(1, 40, 40)
    )
    families = []
    for request in range(30):
        family = (stream_id(StreamKind.BLOCK, int(rng.integers(3))), 40)
        families.append([family, (stream_id(StreamKind.REQUEST, 1000 + request), 40 + int(rng.integers(1, 50)))])
    bulk = make_workload(rng.uniform(0, 0.2, 30), Prompts.from_runs(families, range(30)), rng.integers(1, 30, 30))
    return merge(
        [
            talks.with_targets(100, 20, 12),
            single.select(np.arange(40) < 20).with_targets(200, None).with_priority(1),
            single.select(np.arange(40) >= 20).with_priority(2),
            bulk.with_class(RequestClass.OFFLINE),
        ]
    )


def simulated(workload: Workload, settings: SchedulerConfig, **options: Any) -> simulation.SimulationLoop:
    loop = simulation.SimulationLoop(
        settings, estimates(), request_columns(workload), keep_token_times=True, sample_interval_s=0.05, **options
    )
    while loop.run(50):
        loop.check_invariants()
    loop.check_invariants()
    return loop


def all_bytes(loop: simulation.SimulationLoop) -> list[bytes]:
    arrays = [*loop.records().values(), *loop.samples().values(), *loop.token_times()]
    return [array.tobytes() for array in [*arrays, *map(loop.itl_histogram, RequestClass)]]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_of_an_overload_ends_once_with_all_of_its_tokens(policy: str) -> None:
    workload = overload(1)
    loop = simulated(workload, config(policy))
    records = loop.records()
    assert (records["outcome"] == SimulatedOutcome.FINISHED).all()
    assert loop.num_ended == len(workload)
    counts = np.bincount(loop.token_times()[0], minlength=len(workload))
    assert counts.tolist() == workload.output_tokens.tolist() == records["num_output_tokens"].tolist()


def test_the_overload_is_one() -> None:
    preemptions = {policy: simulated(overload(1), config(policy)).totals()["num_preemptions"] for policy in POLICIES}
    assert min(preemptions.values()) > 0, preemptions


FORMS = [
    {},
    {"enable_prefix_caching": False},
    {"enable_chunked_prefill": False, "max_num_batched_tokens": 128},
    {"hidden_units_per_group": 1, "preemption": "restore", "num_host_units": 60},
    {"preemption": "swap", "num_host_units": 40},
    {"enable_prefix_caching": False, "enable_partial_caching": True},
    {"enable_partial_caching": True, "hidden_units_per_group": 1},
]


@pytest.mark.parametrize("fields", FORMS, ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_inputs_give_the_same_bytes(policy: str, fields: dict[str, Any]) -> None:
    workload = overload(2)
    one = simulated(workload, config(policy, **fields))
    other = simulated(workload, config(policy, **fields))
    assert all_bytes(one) == all_bytes(other)
    assert (one.records()["outcome"] == SimulatedOutcome.FINISHED).all()


# The twin knows steps without transfers and without forms.
@pytest.mark.parametrize("fields", FORMS[:3], ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_plain_python_loop_over_the_same_scheduler_agrees(policy: str, fields: dict[str, Any]) -> None:
    workload, settings = overload(3), config(policy, **fields)
    loop = simulated(workload, settings)
    twin = run_twin(workload, settings, estimates())
    requests, times = loop.token_times()
    assert list(zip(requests.tolist(), times.tolist(), strict=True)) == twin.tokens
    records = loop.records()
    assert np.flatnonzero(records["num_preemptions"]).tolist() == sorted(
        r for r, n in twin.num_preemptions.items() if n
    )
    assert loop.totals()["num_steps"] == twin.num_steps
    assert sorted(twin.finished) == list(range(len(workload)))


def test_step_times_that_are_unknown_stop_nobody() -> None:
    workload = overload(5)
    for policy in POLICIES:
        loop = simulation.SimulationLoop(config(policy), Estimates(), request_columns(workload))
        assert not loop.run(100_000)
        assert (loop.records()["outcome"] == SimulatedOutcome.FINISHED).all()
