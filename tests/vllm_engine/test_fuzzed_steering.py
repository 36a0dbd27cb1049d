"""Whatever vLLM's scheduler is told, tokens are those of vLLM left alone. Needs vLLM: make test-vllm."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("vllm")

import vllm_engine.engine_process as process
from fakes.random_steering import RandomSteering
from fakes.vllm_crowd import GATEWAY, requests, serve
from schedcore.api.config import VLLM_POLICY, EngineConfig
from schedcore.api.types import EngineRequest, ErrorCode, FinishReason, RequestClass, SamplingParams
from schedcore.latency.latency_profile import LatencyCoefficients
from schedcore.record.recording_advisor import RecordingAdvisor
from schedcore.record.replay import replay
from vllm_engine.compat import check_hooks, check_version, vllm_version
from vllm_engine.engine import VllmEngine
from vllm_engine.first_estimate import BEFORE_ANY, estimates
from vllm_engine.make_advisor import make_advisor
from vllm_engine.steering import Steering, StepAdvice

MODEL = Path(__file__).resolve().parents[2] / "worker/demo_model"
NUM_REQUESTS = int(os.environ.get("HOCKET_TEST_VLLM_REQUESTS", "200"))


class CheckedSteering(Steering):
    """Asks the advisor at every step what it believes of who runs, against what is so."""

    def advise(self, running: Any, num_free_blocks: int) -> StepAdvice:
        advice = super().advise(running, num_free_blocks)
        believed = self._advisor.running()
        assert believed == {self._slots[request.request_id]: request.num_computed_tokens for request in running}
        return advice


@pytest.fixture(scope="module")
def engine() -> Any:
    config = EngineConfig(
        model=str(MODEL),
        dtype="float32",
        enforce_eager=True,
        policy=VLLM_POLICY,
        max_num_seqs=32,
        max_num_batched_tokens=256,
        cache_memory_bytes=1 << 28,
        block_size=32,
        vllm_options=("num_gpu_blocks_override=65",),
    )
    made, _ = process.build_engine(config, time.monotonic())
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(engine: VllmEngine) -> dict[int, list[int]]:
    return serve(engine, requests(NUM_REQUESTS, 1), None)


def test_this_vllm_is_known() -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    check_version(vllm_version())
    check_hooks(Scheduler)
    check_hooks(AsyncScheduler)


def test_random_steering_changes_no_token(engine: VllmEngine, expected: dict[int, list[int]]) -> None:
    steering = RandomSteering(7)
    assert serve(engine, requests(NUM_REQUESTS, 1), steering) == expected
    assert steering.num_preempted > NUM_REQUESTS // 10


@pytest.mark.parametrize("policy", ["hocket", "echo", "fcfs", "apt"])
def test_our_policies_change_no_token_and_can_be_replayed(
    engine: VllmEngine, expected: dict[int, list[int]], policy: str, tmp_path: Path
) -> None:
    record = tmp_path / "decisions"
    advisor = make_advisor(engine._core.scheduler, {"policy": policy}, estimates(BEFORE_ANY), record)
    steering = CheckedSteering(advisor, time.monotonic, engine._core.scheduler.is_exact)
    assert serve(engine, requests(NUM_REQUESTS, 1), steering) == expected
    assert steering.stats()["num_steps"] > 4 * steering.num_told, "mostly nobody has to be told"
    cast(RecordingAdvisor, advisor).close()
    replayed = replay(record)
    assert (replayed.difference, replayed.ending) == (None, "closed")
    assert replayed.num_requests == NUM_REQUESTS
    assert replayed.num_output_tokens == sum(map(len, expected.values()))


def test_aborted_requests_hold_no_memory(engine: VllmEngine) -> None:
    scheduler = engine._core.scheduler
    steering = Steering(make_advisor(scheduler, {}, estimates(BEFORE_ANY)), time.monotonic, scheduler.is_exact)
    scheduler.steer(steering)
    engine._steering = steering
    for request in requests(20, 2):
        engine.add(GATEWAY, request)
    for _ in range(5):
        engine.step()
    engine.abort_all(GATEWAY)
    while engine.step():
        pass
    deltas = engine.take_deltas()[GATEWAY]
    assert len({d.request_id for d in deltas if d.finish_reason is not FinishReason.NONE}) == 20
    engine.check_invariants()


def test_parameters_that_vllm_alone_refuses_end_the_request_and_nothing_else(engine: VllmEngine) -> None:
    engine.add(GATEWAY, EngineRequest(1, [3, 4], 2, SamplingParams(presence_penalty=5.0)))
    engine.add(GATEWAY, EngineRequest(2, [3, 4], 2, SamplingParams(temperature=0.0)))
    while engine.step():
        pass
    first, *_, last = engine.take_deltas()[GATEWAY]
    assert first.error is not None
    assert (first.request_id, first.error.code) == (1, ErrorCode.INVALID)
    assert "presence_penalty" in first.error.message
    assert (last.request_id, last.finish_reason) == (2, FinishReason.LENGTH)


def test_who_would_wait_too_long_is_told_when_to_come_again(engine: VllmEngine) -> None:
    scheduler = engine._core.scheduler
    slow = LatencyCoefficients(step_base=0.01, prefill_token=0.01)
    advisor = make_advisor(scheduler, {"max_ttft_ms": 2500.0}, estimates(slow))
    steering = Steering(advisor, time.monotonic, scheduler.is_exact)
    scheduler.steer(steering)
    engine._steering = steering
    for number in range(4):  # a second each
        engine.add(GATEWAY, EngineRequest(number, [20 + number] * 100, 4, SamplingParams(temperature=0.0)))
    engine.add(
        GATEWAY,
        EngineRequest(9, [9] * 100, 2, SamplingParams(temperature=0.0), request_class=RequestClass.OFFLINE),
    )
    errors = {d.request_id: d.error for d in engine.take_deltas()[GATEWAY] if d.error is not None}
    assert {error.code for error in errors.values()} == {ErrorCode.OVERLOADED}
    assert errors.keys() == {2, 3}
    assert all(error.retry_seconds >= 1 for error in errors.values())
    assert engine.stats().predicted_ttft_seconds == pytest.approx(2.0)
    while engine.step():
        pass
    assert engine.stats().predicted_ttft_seconds == 0
    engine.take_deltas()
    engine.check_invariants()


def test_our_share_of_a_step(engine: VllmEngine, expected: dict[int, list[int]]) -> None:
    """Not how long, which is for make bench: that it is measured."""
    assert engine._core.scheduler.steering_seconds > 0
