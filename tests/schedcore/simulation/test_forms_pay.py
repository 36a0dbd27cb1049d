"""Simulated bursts in a pool for a handful of requests: the united policy uses hidden states and partial caching where
step times say that they pay, and is none the worse for them where they do not."""

from __future__ import annotations

from functools import cache

import pytest

from schedcore.api.types import RequestClass
from schedcore.latency.latency_profile import LatencyCoefficients
from schedcore.simulation.cost_model import CostModel
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.model_shape import ModelShape
from schedcore.simulation.report import make_report
from schedcore.simulation.simulator import simulate
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import Workload, make_workload

MODEL = ModelShape(  # 104 million parameters, as many KV heads as heads
    name="100m",
    num_layers=12,
    hidden_size=768,
    num_heads=12,
    num_kv_heads=12,
    head_dim=64,
    intermediate_size=2048,
    vocab_size=8192,
    max_model_len=4096,
)
NUM_TOKENS, PROMPT, OUTPUT = 1800, 128, 96  # in the pool as K and V, of a request
NUM_REQUESTS, TTFT_MS, ITL_MS = 400, 1000.0, 100.0
# Where weights are read for 8 ms whatever is computed, and a projected token costs as little as reading it
IDLE_COMPUTE = LatencyCoefficients(step_base=0.008, prefill_token=2e-6, decode_seq=2e-5, hidden_token=2e-7, overlap=0.0)
# The same, and prompts as good as free
FREE_COMPUTE = LatencyCoefficients(step_base=0.008, prefill_token=1e-7, decode_seq=2e-5, hidden_token=2e-7, overlap=0.0)
# Two CPU cores: a token takes a hundredth of reading the weights, and projecting it a sixth of that
CPU = LatencyCoefficients(step_base=0.006, prefill_token=3e-4, decode_seq=3e-4, hidden_token=5e-5, overlap=0.0)
FORMS = {
    "off": {},
    "kinds": {"enable_hidden_cache": True},
    "ratio": {"enable_partial_caching": True},
    "both": {"enable_hidden_cache": True, "enable_partial_caching": True},
    "copies": {"enable_partial_caching": True, "num_host_blocks": 4000, "num_copy_blocks": 64},
}


def bursts(rate: float) -> Workload:
    times = ArrivalProcess(rate, 5.0).times(NUM_REQUESTS, seed=1)
    workload = make_workload(times, Prompts.unrelated([PROMPT] * NUM_REQUESTS), [OUTPUT] * NUM_REQUESTS)
    workload.ttft_target_ms[:] = TTFT_MS
    workload.itl_target_ms[:] = ITL_MS
    return workload


@cache
def attained(form: str, cost: LatencyCoefficients, rate: float) -> tuple[float, float]:
    """Share of requests within both targets, and requests per second."""
    options = dict(FORMS[form])
    has_hidden = options.pop("enable_hidden_cache", False)
    memory = MODEL.weight_bytes + NUM_TOKENS * MODEL.kv_bytes_per_token
    engine = SimulatedEngine(
        model=MODEL,
        cost=CostModel("made up", cost),
        memory_bytes=memory,
        memory_utilization=1.0,
        policy="hocket",
        enable_hidden_cache=has_hidden,
        options={"enable_prefix_caching": False, **options},
    )
    report = make_report(simulate(bursts(rate), engine)).of(RequestClass.ONLINE)
    assert report.num_finished == NUM_REQUESTS
    assert report.slo_attainment_ratio is not None
    return report.slo_attainment_ratio, report.requests_per_second


def capacity(cost: LatencyCoefficients) -> float:
    """Requests per second, about, of as many as the pool holds."""
    num = NUM_TOKENS // (PROMPT + OUTPUT)
    step = cost.step_base + num * cost.decode_seq
    return num / (OUTPUT * step + num * PROMPT * cost.prefill_token)


@pytest.mark.parametrize("form", ["kinds", "ratio", "both", "copies"])
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_where_forms_do_not_pay_they_do_no_harm(form: str, load: float) -> None:
    rate = load * capacity(CPU)
    assert attained(form, CPU, rate)[0] >= attained("off", CPU, rate)[0] - 0.02


@pytest.mark.parametrize("form", ["kinds", "both"])
def test_where_compute_idles_hidden_states_let_more_requests_meet_their_targets(form: str) -> None:
    rate = 0.8 * capacity(IDLE_COMPUTE)
    with_it, without = attained(form, IDLE_COMPUTE, rate), attained("off", IDLE_COMPUTE, rate)
    assert with_it[0] >= without[0] + 0.05


@pytest.mark.parametrize("form", ["ratio", "both"])
def test_where_compute_is_free_recomputing_lets_more_requests_meet_their_targets(form: str) -> None:
    rate = 0.8 * capacity(FREE_COMPUTE)
    assert attained(form, FREE_COMPUTE, rate)[0] >= attained("off", FREE_COMPUTE, rate)[0] + 0.05


def test_where_recomputing_brings_nothing_loading_lets_more_requests_meet_their_targets() -> None:
    rate = 0.8 * capacity(IDLE_COMPUTE)
    recomputed, loaded = attained("ratio", IDLE_COMPUTE, rate), attained("copies", IDLE_COMPUTE, rate)
    assert loaded[0] >= recomputed[0] + 0.05


def test_where_compute_idles_recomputing_does_no_harm() -> None:
    rate = 0.8 * capacity(IDLE_COMPUTE)
    assert attained("ratio", IDLE_COMPUTE, rate)[0] >= attained("off", IDLE_COMPUTE, rate)[0] - 0.02


def test_requests_within_memory_are_served_alike_whatever_forms_there_are_without_copies() -> None:
    rate = 0.1 * capacity(CPU)
    shares = [attained(form, CPU, rate)[0] for form in ("off", "kinds", "ratio", "both")]
    assert max(shares) - min(shares) < 0.02
