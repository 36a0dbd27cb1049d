"""Offered more than it can do, the default policy goes on doing in time about as much as it can do in all."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from gateway.cli.options import MAX_TTFT_TARGETS
from schedcore._core import Estimates, SchedulerConfig, SimulatedOutcome, simulation
from schedcore.simulation.cost_model import linear_cost
from schedcore.simulation.simulator import request_columns
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import make_workload

STEP = linear_cost("a small model's", 3.0, 0.08, 0.1, 0.0, 0.0)
SECONDS = 40.0
TTFT_MS = 2000.0
OUTPUTS = 64
PROMPT = 96


class Served(NamedTuple):
    finished_per_second: float
    in_time_per_second: float  # of arrivals
    num_refused: int
    longest_wait_s: float  # for the first token


def serve(rate: float, seed: int, policy: str = "hocket", **fields: Any) -> Served:
    rng = np.random.default_rng(seed)
    num = int(rate * SECONDS)
    arrivals = np.cumsum(rng.exponential(1 / rate, num))
    workload = make_workload(arrivals, Prompts.unrelated([PROMPT] * num), [OUTPUTS] * num).with_targets(
        ttft_ms=TTFT_MS, itl_ms=100.0
    )
    settings: dict[str, Any] = {"num_layers": 4, "block_size": 16, "max_model_len": 400, "max_num_waiting": 10_000}
    settings |= {"max_num_batched_tokens": 512, "max_num_seqs": 48, "max_wait_ms": 10_000, **fields}
    config = SchedulerConfig(num_units=8000, policy=policy, **settings)
    loop = simulation.SimulationLoop(config, Estimates(latency=STEP.to_core()), request_columns(workload))
    assert not loop.run(1_000_000)
    records = loop.records()
    finished = records["outcome"] == SimulatedOutcome.FINISHED
    waits = (records["first_token_s"] - records["arrival_s"])[finished]
    span = float(records["last_token_s"][finished].max())
    return Served(
        finished.sum() / span,
        (waits <= TTFT_MS / 1000).sum() / min(span, SECONDS),
        int((~finished).sum()),
        float(waits.max()),
    )


@pytest.mark.parametrize("seed", range(3))
def test_by_deadline_nobody_is_served_who_would_be_late_by_a_little(seed: int) -> None:
    """Nobody is refused and nobody starves: order alone."""
    found = serve(60, seed, max_wait_ms=1e9)
    assert found.num_refused == 0
    assert found.in_time_per_second >= 0.95 * found.finished_per_second


@pytest.mark.parametrize("seed", range(3))
def test_who_is_accepted_while_others_are_refused_comes_in_time(seed: int) -> None:
    """As `hocket serve` refuses by default."""
    found = serve(60, seed, max_ttft_ms=MAX_TTFT_TARGETS * TTFT_MS)
    assert found.num_refused > 0
    assert found.in_time_per_second >= 0.95 * found.finished_per_second
    assert found.longest_wait_s <= 10.5  # who is late after all goes first after ten seconds


def test_below_capacity_nobody_is_refused() -> None:
    found = serve(40, 0, max_ttft_ms=MAX_TTFT_TARGETS * TTFT_MS)
    assert (found.num_refused, found.longest_wait_s < TTFT_MS / 1000) == (0, True)
