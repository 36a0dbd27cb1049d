"""In which forms the core keeps tokens, and what it says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from schedcore._core import AddStatus, Estimates, Scheduler, SchedulerConfig, algorithms

BLOCK = 16  # 4 units of K and V per block, 2 of hidden states
PROMPT = 100


class Core:
    """One token per sample, a second per step."""

    def __init__(self, estimates: Estimates | None = None, *, num_units: int = 256, **settings: Any) -> None:
        config = SchedulerConfig(num_units=num_units, num_layers=8, max_num_seqs=64, max_model_len=512, **settings)
        self.scheduler, self.now, self._num_requests = Scheduler(config, estimates), 0.0, 0

    def add(self, num: int = 1, *, max_tokens: int = 60, num_prompt: int = PROMPT) -> None:
        for _ in range(num):
            self._num_requests += 1
            prompt = range(1000 * self._num_requests, 1000 * self._num_requests + num_prompt)
            status = self.scheduler.add_request(self._num_requests, list(prompt), max_tokens=max_tokens)
            assert status == AddStatus.OK

    def step(self) -> None:
        plan = self.scheduler.schedule(self.now)
        if plan:
            self.scheduler.commit(np.full(len(plan.sample_seqs), 7, np.int32), self.now + 0.01)
        self.scheduler.check_invariants()
        self.now += 1.0

    def stats(self) -> dict[str, Any]:
        return self.scheduler.stats()


def most_tokens(**settings: Any) -> tuple[int, dict[str, Any]]:
    """Computed tokens of what fits at once."""
    core = Core(num_units=1024, **settings)
    core.add(40, num_prompt=400)
    for _ in range(20):
        core.step()
    stats = core.stats()
    return sum(stats["num_kind_tokens"]), stats


def test_a_pool_holds_twice_the_tokens_as_hidden_states() -> None:
    as_kv, of_kv = most_tokens()
    as_hidden, of_hidden = most_tokens(hidden_units_per_group=1, cache_kind="hidden")
    assert of_kv["num_kind_tokens"][1] == 0
    assert of_hidden["num_kind_tokens"][0] == 0
    assert as_hidden >= 1.9 * as_kv


def test_tokens_and_units_by_kind_add_up() -> None:
    core = Core(hidden_units_per_group=1, cache_kind="hidden")
    core.add(3)
    core.step()
    stats = core.stats()
    assert stats["num_kind_tokens"] == [0, 3 * PROMPT, 0]
    assert stats["num_kind_units"] == [0, 3 * 7 * 2, 0]
    assert sum(stats["num_kind_units"]) == stats["num_units"] - stats["num_free_units"]


def test_a_prefix_that_requests_share_counts_once() -> None:
    core = Core()
    prompt = list(range(PROMPT))
    for request_id in (1, 2):
        core.scheduler.add_request(request_id, prompt, max_tokens=60)
        core.step()
    whole_blocks = PROMPT // BLOCK * BLOCK
    in_own_blocks = (PROMPT - whole_blocks) + 1 + (PROMPT - whole_blocks)  # the first has decoded once more
    assert core.stats()["num_kind_tokens"] == [whole_blocks + in_own_blocks, 0, 0]


@pytest.mark.parametrize("projection_us", [1.0, 500.0])
def test_the_united_policy_keeps_hidden_states_only_if_projecting_them_is_cheap(projection_us: float) -> None:
    coefficients = algorithms.LatencyCoefficients(step_base=0.01, prefill_token=2e-5, hidden_token=1e-6 * projection_us)
    estimates = Estimates(latency=algorithms.LatencyModel("corrected", coefficients))
    core, num_hidden, num_converted = Core(estimates, policy="hocket", hidden_units_per_group=1), 0, 0
    core.add(12)
    for _ in range(200):
        core.step()
        num_hidden = max(num_hidden, core.stats()["num_kind_tokens"][1])
        num_converted = core.stats()["num_conversions"][0]
    assert not core.scheduler.has_work()
    assert (num_hidden > 0) == (projection_us < 100)
    assert (num_converted > 0) == (projection_us < 100)


def test_with_memory_for_all_the_united_policy_keeps_k_and_v() -> None:
    core = Core(policy="hocket", hidden_units_per_group=1)
    core.add(4)
    for _ in range(30):
        core.step()
        assert core.stats()["num_kind_tokens"][1] == 0
