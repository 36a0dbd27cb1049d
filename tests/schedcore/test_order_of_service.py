"""Among equal requests whoever came first is served first, under every policy; and what that does to waiting.

Slots of the request table are given back last in, first out, so that in these backlogs their numbers say nothing of who
came first. Times are counted in steps: every step takes a second, however much it computes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from schedcore._core import Estimates, SchedulerConfig, SimulatedOutcome, simulation
from schedcore.api.config import POLICIES
from schedcore.api.types import RequestClass
from schedcore.simulation.cost_model import linear_cost
from schedcore.simulation.simulator import request_columns
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import NO_TARGET, Workload, make_workload

STEP = linear_cost("a second, whatever it computes", 1000.0, 0.0, 0.0, 0.0, 0.0)
GROWING = linear_cost("more for more", 800.0, 2.0, 0.0, 0.05, 0.0)
TOKENS_PER_STEP = 64
LONG_MS = 1e9  # a target, and a wait, that nobody misses


def config(policy: str, num_blocks: int = 4000, **fields: Any) -> SchedulerConfig:
    defaults: dict[str, Any] = {"num_layers": 4, "block_size": 4, "max_model_len": 400, "max_num_waiting": 10_000}
    defaults |= {"max_num_batched_tokens": TOKENS_PER_STEP, "max_num_seqs": 64}
    defaults |= {"max_wait_ms": LONG_MS, "max_offline_wait_ms": LONG_MS, "max_offline_step_ms": 10_000}
    return SchedulerConfig(num_units=2 * num_blocks, policy=policy, **{**defaults, **fields})


def queue(rng: np.random.Generator, num_requests: int, load: float) -> Workload:
    """Prompts of three lengths with short answers, unrelated to each other, at that share of what steps can compute."""
    inputs = rng.choice([24, 60, 150], num_requests)
    outputs = rng.choice([1, 6], num_requests)
    mean_gap = float((inputs + outputs).mean()) / TOKENS_PER_STEP / load
    arrivals = np.cumsum(rng.exponential(mean_gap, num_requests))
    arrivals[1::7] = arrivals[::7][: len(arrivals[1::7])]  # some at the very same moment: in the order of their numbers
    return make_workload(arrivals, Prompts.unrelated(inputs.tolist()), outputs)


def mixed(seed: int) -> Workload:
    """A backlog of online requests with and without targets, of two priorities, and of offline ones, favoured too."""
    rng = np.random.default_rng(seed)
    workload = queue(rng, 500, 1.3)
    is_offline, is_special = rng.random(500) < 0.35, rng.random(500) < 0.3
    has_targets = rng.random(500) < 0.3
    return replace(
        workload,
        request_class=np.where(is_offline, RequestClass.OFFLINE, RequestClass.ONLINE).astype(np.uint8),
        priority=np.where(is_special, np.where(is_offline, -1, 1), 0),
        ttft_target_ms=np.where(has_targets, LONG_MS, NO_TARGET),
        itl_target_ms=np.where(has_targets, LONG_MS, NO_TARGET),
        tpot_target_ms=np.where(has_targets, LONG_MS, NO_TARGET),
    )


def first_services(workload: Workload, settings: SchedulerConfig, cost: Any = STEP) -> np.ndarray:
    loop = simulation.SimulationLoop(settings, Estimates(latency=cost.to_core()), request_columns(workload))
    assert not loop.run(1_000_000)
    records = loop.records()
    assert (records["outcome"] == SimulatedOutcome.FINISHED).all()
    return records["scheduled_s"]


def num_inversions(workload: Workload, served_s: np.ndarray) -> int:
    """Requests that were served before an equal one that had come before them."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for i in np.lexsort((np.arange(len(workload)), workload.arrival_s)).tolist():
        kind = (workload.request_class[i], workload.priority[i], workload.input_tokens[i], workload.output_tokens[i])
        groups[(*kind, workload.ttft_target_ms[i], workload.itl_target_ms[i])].append(i)
    return sum(int((served_s[g] < np.maximum.accumulate(served_s[g])).sum()) for g in groups.values())


SETTINGS = {
    "ample": {},
    "few rows": {"max_num_seqs": 3},
    "little memory": {"num_blocks": 220},
    "whole prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 160},
    "fastgen": {"token_composition": "fastgen"},
    "hidden": {"num_blocks": 220, "hidden_units_per_group": 1},
}


@pytest.mark.parametrize("fields", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_is_served_before_an_equal_who_came_first(policy: str, fields: dict[str, Any]) -> None:
    for seed in range(3):
        for cost in (STEP, GROWING):
            workload = mixed(seed)
            assert num_inversions(workload, first_services(workload, config(policy, **fields), cost)) == 0


def test_in_a_full_queue_hocket_makes_nobody_wait_longer_than_first_come_first_served() -> None:
    workload = queue(np.random.default_rng(7), 4000, 0.9)
    served = {policy: first_services(workload, config(policy)) for policy in ("fcfs", "hocket")}
    assert num_inversions(workload, served["hocket"]) == 0
    waits = {policy: times - workload.arrival_s for policy, times in served.items()}
    assert waits["fcfs"].max() > 20  # there is a queue
    assert np.percentile(waits["hocket"], 99) <= 1.1 * np.percentile(waits["fcfs"], 99)
    assert waits["hocket"].max() <= 1.1 * waits["fcfs"].max()
