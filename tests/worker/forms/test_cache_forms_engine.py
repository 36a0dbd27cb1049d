"""The real scheduler decides about cache forms, the real model runner carries it out: tokens are those of K and V."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fakes.engine_driver import PlanWatch, greedy_requests, make_engine, output_tokens, run
from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint
from schedcore._core import BatchPlan, Estimates, Scheduler, SchedulerConfig, algorithms
from schedcore.api.types import EngineRequest, SamplingParams, TokenDelta
from schedcore.record.replay import replay
from worker.process.engine import Engine

NUM_OUTPUT, MAX_LEN = 24, 128
BYTES_PER_TOKEN = 2 * 3 * 64 * 4  # K and V of three layers, d_kv 64, float32
LENGTHS = (7, 90, 33, 16, 61, 2, 100, 48, 17, 75, 90, 5)


class Watch(PlanWatch):
    """Counts what plans hold."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.num_hidden = self.num_uncached = self.num_projected = 0
        self.most_tokens = 0  # with cache, in one step

    def note(self, plan: BatchPlan) -> None:
        self.num_hidden += int(plan.hidden_tokens.sum())
        self.num_uncached += int(plan.uncached_tokens.sum())
        self.num_projected += len(plan.projections)
        self.most_tokens = max(self.most_tokens, int(plan.seq_lens.sum()))


@dataclass(frozen=True)
class Case:
    folder: Path
    requests: list[EngineRequest]
    expected: list[list[int]]


@pytest.fixture(scope="module", params=["opt", "llama-mha-tied", "qwen3"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    rng = random.Random(request.param)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]
    prompts[-2][:40] = prompts[1][:40]
    requests = greedy_requests(prompts, NUM_OUTPUT)
    return Case(folder, requests, output_tokens(run(make_engine(folder), requests)))


def small_engine(folder: Path, num_tokens: int, **settings: Any) -> tuple[Engine, Watch]:
    """A cache of so many tokens as K and V."""
    fixed = {"max_model_len": MAX_LEN, "block_size": 4, "layers_per_unit": 3, "max_num_batched_tokens": 64}
    engine = make_engine(folder, cache_memory_bytes=num_tokens * BYTES_PER_TOKEN, **{**fixed, **settings})
    return engine, Watch(engine)


def convince(engine: Engine, estimates: Estimates, **settings: Any) -> None:
    """Another scheduler of the same memory, that believes what it is told of the machine and sees steps of 10 ms."""
    fixed = {"num_layers": 3, "layers_per_unit": 3, "block_size": 4, "max_num_seqs": 16, "max_model_len": MAX_LEN}
    config = SchedulerConfig(num_units=engine.stats().num_units, max_num_batched_tokens=128, **fixed, **settings)
    times = itertools.count()
    engine._core, engine._clock = Scheduler(config, estimates), lambda: 0.005 * next(times)
    if engine._tiers is not None:
        engine._tiers._core = engine._core


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
@pytest.mark.parametrize("policy", ["apt", "hocket"])
def test_kinds_that_the_policy_picks(case: Case, policy: str, enable_prefix_caching: bool) -> None:
    engine, watch = small_engine(case.folder, 300, policy=policy, cache_kinds="auto")
    settings = {"policy": policy, "enable_prefix_caching": enable_prefix_caching}
    convince(engine, Estimates(), hidden_units_per_group=1, **settings)
    assert output_tokens(run(engine, case.requests)) == case.expected
    assert watch.num_hidden + watch.num_projected > 0


@pytest.mark.parametrize("host_cache_bytes", [0, 1 << 20])
def test_kinds_by_what_steps_are_measured_to_take(case: Case, host_cache_bytes: int) -> None:
    engine, _ = small_engine(case.folder, 300, cache_kinds="auto", host_cache_bytes=host_cache_bytes)
    assert output_tokens(run(engine, case.requests)) == case.expected
    assert output_tokens(run(engine, case.requests)) == case.expected
    engine.close()


def test_steps_with_forms_replay_with_identical_decisions(case: Case, tmp_path: Path) -> None:
    record = tmp_path / "decisions"
    engine, watch = small_engine(case.folder, 250, policy="fcfs", cache_kinds="hidden", decision_record=str(record))
    run(engine, case.requests)
    assert watch.num_hidden > 0
    engine._core.close()  # type: ignore[attr-defined]
    result = replay(record)
    assert (result.is_identical, result.difference) == (True, None)


@pytest.mark.parametrize("host_cache_bytes", [0, 1 << 20])
@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_hidden_states_alone(case: Case, enable_prefix_caching: bool, host_cache_bytes: int) -> None:
    if host_cache_bytes and not enable_prefix_caching:
        pytest.skip("the host tier needs the prefix cache")
    engine, watch = small_engine(
        case.folder,
        250,
        policy="fcfs",
        cache_kinds="hidden",
        enable_prefix_caching=enable_prefix_caching,
        host_cache_bytes=host_cache_bytes,
    )
    assert output_tokens(run(engine, case.requests)) == case.expected
    assert watch.num_hidden > 1000
    assert engine.stats().num_preemptions > 0
    engine.close()


def idle_compute(units_per_token: float, **beliefs: float) -> Estimates:
    """Of a device whose weights take so long to read that computing some tokens more costs nothing."""
    costs = algorithms.StepCosts(
        "roofline",
        flops_per_token=1.0,
        flops_per_pair=1e-6,
        flops_per_logit=1e-6,
        flops_per_second=1e6,
        weight_bytes=1e6,
        head_bytes=1.0,
        kv_bytes_per_token=units_per_token,
        workspace_bytes_per_token=0.0,
        bytes_per_second=1e6,
    )
    latency = algorithms.LatencyModel("corrected", algorithms.LatencyCoefficients(step_base=0.005, prefill_token=1e-8))
    return Estimates(costs=costs, latency=latency, **beliefs)


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
@pytest.mark.parametrize("hidden_units_per_group", [0, 1])
@pytest.mark.parametrize("policy", ["ellm", "hocket"])
def test_uncached_tokens_that_the_policy_picks(
    case: Case, policy: str, hidden_units_per_group: int, enable_prefix_caching: bool
) -> None:
    """The scheduler believes in a machine that it pays on."""
    settings = {"policy": policy, "enable_prefix_caching": enable_prefix_caching}
    engine, watch = small_engine(case.folder, 300, partial_caching=True, max_num_batched_tokens=128, **settings)
    convince(
        engine,
        idle_compute(2 / 4),
        **settings,
        enable_partial_caching=True,
        hidden_units_per_group=hidden_units_per_group,
    )
    assert output_tokens(run(engine, case.requests)) == case.expected
    assert watch.num_uncached > 0
    assert (watch.num_hidden > 0) == (policy == "hocket" and hidden_units_per_group > 0)


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
@pytest.mark.parametrize("policy", ["ellm", "hocket"])
@pytest.mark.parametrize("copy_seconds", [1e-10, 1.0])
def test_uncached_tokens_that_the_host_has(
    case: Case, policy: str, copy_seconds: float, enable_prefix_caching: bool
) -> None:
    """copy_seconds: that the scheduler believes a block to take from the host."""
    engine, watch = small_engine(
        case.folder,
        400,
        policy=policy,
        partial_caching=True,
        enable_prefix_caching=enable_prefix_caching,
        host_cache_bytes=4 << 20,
        max_num_batched_tokens=128,
    )
    assert engine._tiers is not None
    mover = engine._tiers._mover
    convince(
        engine,
        idle_compute(2 / 4, host_bytes_per_second=2 / copy_seconds, unit_bytes=1.0),
        policy=policy,
        enable_prefix_caching=enable_prefix_caching,
        enable_partial_caching=True,
        num_host_blocks=mover.host.num_slots,
        num_copy_blocks=mover._pool.num_lane_blocks,
    )
    assert output_tokens(run(engine, case.requests)) == case.expected
    stats = engine.stats()
    assert watch.num_uncached == stats.num_recomputed_tokens + stats.num_loaded_tokens > 0
    assert (stats.num_loaded_tokens > 0) == (copy_seconds < 1)
    engine.close()


def test_as_many_bytes_hold_nearly_twice_the_tokens_as_hidden_states(case: Case) -> None:
    rng = random.Random(1)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(380, 420))] for _ in range(60)]
    most = {}
    for cache_kinds in ("kv", "hidden"):
        engine, watch = small_engine(
            case.folder,
            8000,
            policy="fcfs",
            cache_kinds=cache_kinds,
            enable_prefix_caching=False,
            max_model_len=500,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
        )
        run(engine, greedy_requests(prompts, 20))
        most[cache_kinds] = watch.most_tokens
    assert most["kv"] > 6000
    assert most["hidden"] >= 1.9 * most["kv"]


def test_sampled_tokens_and_prompt_logprobs_are_those_of_k_and_v(case: Case) -> None:
    kinds = [SamplingParams(seed=i, temperature=0.8, num_logprobs=2) for i in range(6)]
    kinds[2] = kinds[4] = SamplingParams(seed=9, num_prompt_logprobs=1)
    requests = [
        EngineRequest(one.request_id, one.prompt_token_ids, NUM_OUTPUT, kind)
        for one, kind in zip(case.requests, kinds, strict=False)
    ]
    as_kv, as_hidden = (
        run(small_engine(case.folder, 400, policy="fcfs", cache_kinds=cache_kinds)[0], requests)
        for cache_kinds in ("kv", "hidden")
    )
    assert output_tokens(as_hidden) == output_tokens(as_kv)
    for request_id in as_kv:
        for mine, theirs in zip(as_hidden[request_id], as_kv[request_id], strict=True):
            assert _about(mine) == pytest.approx(_about(theirs), abs=1e-4)


def _about(delta: TokenDelta) -> list[float]:
    """The log-probabilities that a delta tells."""
    return [one.logprob for one in [*(delta.logprobs or []), *(delta.prompt_logprobs or [])] if one is not None]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_reduced_precision_hidden_states_cost_no_more_than_k_and_v_do(case: Case, dtype: str) -> None:
    """Log-probabilities of a prompt in chunks: all but the first read what was stored before."""
    prompt = random.Random(3).choices(range(VOCAB_SIZE), k=100)
    request = EngineRequest(1, prompt, 1, SamplingParams(temperature=0.0, num_logprobs=0, num_prompt_logprobs=0))

    def logprobs(dtype: str, cache_kinds: str) -> list[float]:
        settings = {"dtype": dtype, "policy": "fcfs", "cache_kinds": cache_kinds, "max_num_batched_tokens": 16}
        engine = make_engine(case.folder, **settings)
        values = run(engine, [request])[1][0].prompt_logprobs
        assert values is not None
        return [one.logprob for one in values if one is not None]

    def mean_difference(a: list[float], b: list[float]) -> float:
        return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a)

    exact, as_kv, as_hidden = logprobs("float32", "kv"), logprobs(dtype, "kv"), logprobs(dtype, "hidden")
    assert mean_difference(as_hidden, as_kv) < 0.1
    assert mean_difference(as_hidden, exact) < 1.5 * mean_difference(as_kv, exact)
