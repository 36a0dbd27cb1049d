"""Cache forms that are allowed and do not pay change nothing: step by step the plan is that of a core without them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from schedcore._core import AddStatus, BatchPlan, Estimates, Scheduler, SchedulerConfig, algorithms
from schedcore.simulation.workloads.arrivals import ArrivalProcess

PROMPT, OUTPUT, NUM_REQUESTS, RATE = 128, 96, 140, 7.0
NUM_UNITS, UNITS_PER_BLOCK = 682, 6  # 113 blocks: eight such requests
# Measured on two CPU cores, a decoder of 100 million parameters
CPU = algorithms.LatencyCoefficients(
    step_base=2.5e-3,
    prefill_floor=1.5e-3,
    prefill_pair=1.1e-7,
    prefill_token=1.7e-4,
    prefill_context=1.0e-6,
    decode_base=7.2e-4,
    decode_seq=1.8e-4,
    decode_max_context=6.7e-7,
    hidden_token=4.2e-5,
    overlap=0.0,
)
FORMS = {
    "kinds": {"hidden_units_per_group": 1},
    "ratio": {"enable_partial_caching": True},
    "both": {"hidden_units_per_group": 1, "enable_partial_caching": True},
}
SCHEDULED = (
    "request_ids", "query_start", "token_ids", "positions", "rows", "seq_lens", "sample_seqs", "preempted_ids",
    "block_table_index", "block_table_unit",
)  # fmt: skip
OF_FORMS = ("cache_kinds", "uncached_tokens", "hidden_tokens", "missing_tokens", "projections")

Step = tuple[float, tuple[bytes, ...]]


def step_seconds(plan: BatchPlan, model: algorithms.LatencyModel) -> float:
    batch = algorithms.LatencyBatch(512)
    for num_tokens, length in zip(np.diff(plan.query_start).tolist(), plan.seq_lens.tolist(), strict=True):
        if num_tokens == 1:
            batch.add_decode(length)
        else:
            batch.add_chunk(length - num_tokens, num_tokens)
    return model.predict(batch.features)


def steps(seed: int, slower: float, **forms: object) -> Iterator[Step]:
    """What is decided of bursts, and when. slower: how much longer steps take than is believed at first."""
    model = algorithms.LatencyModel("corrected", CPU)
    config = SchedulerConfig(
        num_units=NUM_UNITS, num_layers=12, max_num_seqs=64, max_model_len=512, policy="hocket",
        enable_prefix_caching=False, refine_latency=True, **forms,
    )  # fmt: skip
    core = Scheduler(config, Estimates(latency=model))
    arrivals, now, num_added = ArrivalProcess(RATE, 5.0).times(NUM_REQUESTS, seed).tolist(), 0.0, 0
    while num_added < NUM_REQUESTS or core.has_work():
        while num_added < NUM_REQUESTS and (arrivals[num_added] <= now or not core.has_work()):
            now, prompt = max(now, arrivals[num_added]), np.arange(PROMPT, dtype=np.int32) + 1000 * num_added
            status = core.add_request(
                num_added, prompt, max_tokens=OUTPUT, arrival_time=arrivals[num_added], ttft_target=1.6, itl_target=0.08
            )
            assert status == AddStatus.OK
            num_added += 1
        plan = core.schedule(now)
        assert not any(getattr(plan, name).any() for name in OF_FORMS)
        yield now, tuple(getattr(plan, name).tobytes() for name in SCHEDULED)
        now += slower * step_seconds(plan, model)
        core.commit(np.full(len(plan.sample_seqs), 7, np.int32), now)
    assert core.stats()["num_preemptions"] > 10  # memory did bind


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("seed", "slower"), [(0, 1.0), (1, 0.8), (2, 1.3)])
def test_forms_that_do_not_pay_change_no_decision(form: str, seed: int, slower: float) -> None:
    without = list(steps(seed, slower))
    with_forms = list(steps(seed, slower, **FORMS[form]))
    different = next((i for i, (a, b) in enumerate(zip(without, with_forms, strict=False)) if a != b), None)
    assert different is None
    assert len(without) == len(with_forms)
