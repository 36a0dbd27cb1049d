"""The loop with the real core and a scripted executor: deltas, refusals, aborts, death."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.engine_driver import GATEWAY, run
from fakes.manual_clock import ManualClock
from fakes.scripted_executor import ScriptedExecutor, TokenRule
from schedcore._core import NO_TOKEN, BatchPlan, CoreError, Estimates, Scheduler, SchedulerConfig, algorithms
from schedcore.api.types import (
    Advisory,
    AdvisoryEvent,
    EngineRequest,
    ErrorCode,
    FinishReason,
    RequestClass,
    SamplingParams,
    Targets,
    TokenDelta,
    TokenLogprobs,
)
from schedcore.tiers.session_book import SessionBook
from schedcore.tiers.session_files import Int32, SessionFiles
from worker.process.engine import Engine, EngineLimits
from worker.runner.executor import StepResult
from worker.tiers.engine_sessions import BookedSessions

LIMITS = EngineLimits(vocab_size=100, max_model_len=64, max_num_batched_tokens=32, max_num_waiting=4)


def make_engine(
    executor: ScriptedExecutor | None = None,
    clock: ManualClock | None = None,
    estimates: Estimates | None = None,
    **settings: Any,
) -> tuple[Engine, ScriptedExecutor]:
    config = {
        "num_units": 200,
        "num_layers": 2,
        "layers_per_unit": 2,
        "block_size": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": LIMITS.max_num_batched_tokens,
        "max_model_len": LIMITS.max_model_len,
        "max_num_waiting": LIMITS.max_num_waiting,
    }
    executor = executor or ScriptedExecutor()
    core = Scheduler(SchedulerConfig(**{**config, **settings}), estimates)
    return Engine(core, executor, LIMITS, clock or ManualClock()), executor


def request(request_id: int = 1, prompt_length: int = 5, max_tokens: int = 3, **fields: Any) -> EngineRequest:
    return EngineRequest(request_id, list(range(1, prompt_length + 1)), max_tokens, **fields)


def deltas_of(engine: Engine, gateway: bytes = GATEWAY) -> list[TokenDelta]:
    return engine.take_deltas().get(gateway, [])


def refusal(engine: Engine, one: EngineRequest) -> tuple[ErrorCode, str]:
    engine.add(GATEWAY, one)
    (delta,) = deltas_of(engine)
    assert (delta.request_id, delta.finish_reason, delta.token_ids) == (one.request_id, FinishReason.ERROR, [])
    assert delta.error is not None
    return delta.error.code, delta.error.message


def test_each_step_yields_one_token_and_the_last_delta_is_final() -> None:
    engine, executor = make_engine()
    deltas = run(engine, [request(request_id=7)])[7]
    assert [delta.token_ids for delta in deltas] == [[0], [1], [2]]
    assert deltas[-1].finish_reason == FinishReason.LENGTH
    assert deltas[-1].stop_token_id is None
    assert executor.requests == {}


def test_a_stop_token_ends_the_request_and_is_named() -> None:
    engine, _ = make_engine()
    deltas = run(engine, [request(max_tokens=50, stop_token_ids=[4])])[1]
    assert [delta.token_ids[0] for delta in deltas] == [0, 1, 2, 3, 4]
    assert (deltas[-1].finish_reason, deltas[-1].stop_token_id) == (FinishReason.STOP, 4)


def test_equal_ids_of_two_gateways_are_two_requests() -> None:
    engine, _ = make_engine()
    engine.add(b"a", request(max_tokens=1))
    engine.add(b"b", request(max_tokens=2))
    outputs: dict[bytes, list[int]] = defaultdict(list)
    while engine.step():
        for gateway, deltas in engine.take_deltas().items():
            outputs[gateway] += [token for delta in deltas for token in delta.token_ids]
    assert outputs == {b"a": [0], b"b": [0, 1]}


def test_an_id_is_free_again_once_its_request_is_final() -> None:
    engine, _ = make_engine()
    first, second = run(engine, [request()]), run(engine, [request()])
    assert [delta.token_ids for delta in first[1]] == [delta.token_ids for delta in second[1]]


def test_deltas_of_a_step_follow_the_plan() -> None:
    engine, _ = make_engine()
    for request_id in (5, 3, 4):
        engine.add(GATEWAY, request(request_id))
    engine.step()
    assert [delta.request_id for delta in deltas_of(engine)] == [5, 3, 4]


def test_cached_prompt_tokens_are_reported_on_the_first_delta() -> None:
    engine, _ = make_engine()
    assert run(engine, [request(1, prompt_length=13)])[1][0].num_cached_tokens == 0
    assert run(engine, [request(2, prompt_length=13)])[2][0].num_cached_tokens == 12


def test_cached_prefixes_are_not_shared_across_salts() -> None:
    engine, _ = make_engine()
    run(engine, [request(1, prompt_length=13, cache_salt="a")])
    assert run(engine, [request(2, prompt_length=13, cache_salt="b")])[2][0].num_cached_tokens == 0
    assert run(engine, [request(3, prompt_length=13, cache_salt="a")])[3][0].num_cached_tokens == 12


def test_prompt_logprobs_are_never_asked_of_a_cached_prefix() -> None:
    engine, _ = make_engine()
    wanting = request(1, prompt_length=13, sampling=SamplingParams(num_prompt_logprobs=0))
    for _ in range(2):
        assert run(engine, [wanting])[1][0].num_cached_tokens == 0


def test_logprobs_reach_the_request_they_belong_to() -> None:
    class WithLogprobs(ScriptedExecutor):
        def execute(self, plan: BatchPlan) -> StepResult:
            tokens = super().execute(plan).sampled_token_ids
            about = {i: TokenLogprobs(int(token), -0.5, 1) for i, token in enumerate(tokens) if token % 2}
            prompts = {int(plan.request_ids[0]): [None, TokenLogprobs(2, -1.0, 3)]}
            return StepResult(tokens, about, prompts)

    engine, _ = make_engine(WithLogprobs(lambda one, known: one.request_id + 10))
    for request_id in (21, 22, 23):
        engine.add(GATEWAY, request(request_id))
    engine.step()
    deltas = deltas_of(engine)
    assert [delta.token_ids for delta in deltas] == [[11], [12], [13]]
    assert [delta.logprobs and delta.logprobs[0].token_id for delta in deltas] == [11, None, 13]
    assert [delta.prompt_logprobs is not None for delta in deltas] == [True, False, False]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt_token_ids": []}, "prompt is empty"),
        ({"prompt_token_ids": [1, 100]}, r"\[0, 100\)"),
        ({"prompt_token_ids": [-1]}, r"\[0, 100\)"),
        ({"prompt_token_ids": [2**70]}, r"\[0, 100\)"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"stop_token_ids": [-2]}, "stop_token_ids"),
        ({"priority": 2**40}, "priority"),
        ({"targets": Targets(ttft_ms=-1.0)}, "ttft_target_ms must be positive, not -1"),
        ({"targets": Targets(itl_ms=0.0)}, "itl_target_ms must be positive, not 0"),
        ({"targets": Targets(tpot_ms=float("nan"))}, "tpot_target_ms must be positive, not nan"),
        ({"age_ms": float("nan")}, "age_ms"),
        ({"sampling": SamplingParams(temperature=-0.1)}, "temperature must not be negative, not -0.1"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, "temperature"),
        ({"sampling": SamplingParams(top_p=0.0)}, r"top_p must be in \(0, 1\], not 0"),
        ({"sampling": SamplingParams(top_k=-2)}, "top_k"),
        ({"sampling": SamplingParams(min_p=1.5)}, "min_p"),
        ({"sampling": SamplingParams(repetition_penalty=0.0)}, "repetition_penalty"),
        ({"sampling": SamplingParams(presence_penalty=float("inf"))}, "presence_penalty"),
        ({"sampling": SamplingParams(logit_bias={100: 1.0})}, r"logit_bias.*\[0, 100\)"),
        ({"sampling": SamplingParams(logit_bias={1: float("nan")})}, "logit_bias"),
        ({"sampling": SamplingParams(num_logprobs=101)}, r"num_logprobs must be in \[0, 100\], not 101"),
        ({"sampling": SamplingParams(num_prompt_logprobs=-1)}, "num_prompt_logprobs"),
    ],
)
def test_a_senseless_request_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    engine, executor = make_engine()
    code, message = refusal(
        engine, EngineRequest(**{"request_id": 1, "prompt_token_ids": [1], "max_tokens": 1, **fields})
    )
    assert code == ErrorCode.INVALID
    assert re.search(words, message), message
    assert executor.requests == {}


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers() -> None:
    code, message = refusal(make_engine()[0], request(prompt_length=64))
    assert code == ErrorCode.TOO_LONG
    assert "64 tokens and needs room for one more" in message
    assert "context is 64 tokens" in message


def test_a_prompt_beyond_a_step_is_refused_without_chunked_prefill() -> None:
    engine, _ = make_engine(enable_chunked_prefill=False)
    code, message = refusal(engine, request(prompt_length=40))
    assert code == ErrorCode.TOO_LONG
    assert "a step takes at most 32" in message


def test_a_full_queue_is_said_to_be_full() -> None:
    engine, _ = make_engine()
    for request_id in range(4):
        engine.add(GATEWAY, request(request_id))
    code, message = refusal(engine, request(9))
    assert code == ErrorCode.QUEUE_FULL
    assert "4 requests are waiting" in message


def test_who_would_wait_too_long_is_told_when_to_come_again() -> None:
    coefficients = algorithms.LatencyCoefficients(step_base=0.01, prefill_token=1.0)
    estimates = Estimates(latency=algorithms.LatencyModel("corrected", coefficients))
    engine, _ = make_engine(estimates=estimates, max_ttft_ms=20_000, max_num_waiting=100)
    for request_id in range(4):  # 5 s each
        engine.add(GATEWAY, request(request_id))
    assert deltas_of(engine) == []
    engine.add(GATEWAY, request(9))
    (delta,) = deltas_of(engine)
    assert delta.error is not None
    assert delta.error.code == ErrorCode.OVERLOADED
    assert delta.error.retry_seconds == pytest.approx(5.0)
    engine.add(GATEWAY, request(10, request_class=RequestClass.OFFLINE))
    assert deltas_of(engine) == []


def test_an_open_id_is_refused_and_its_request_goes_on() -> None:
    engine, _ = make_engine()
    engine.add(GATEWAY, request())
    assert refusal(engine, request())[0] == ErrorCode.DUPLICATE_ID
    assert len(run(engine, [])[1]) == 3


def test_huge_limits_mean_as_much_as_fits() -> None:
    engine, _ = make_engine()
    deltas = run(engine, [request(max_tokens=2**60, min_tokens=2**50, stop_token_ids=[3])])[1]
    assert deltas[-1].finish_reason == FinishReason.LENGTH
    assert len(deltas) == LIMITS.max_model_len - 5


def test_abort_gives_one_final_delta_and_frees_everything() -> None:
    engine, executor = make_engine()
    engine.add(GATEWAY, request(max_tokens=50))
    engine.step()
    engine.abort(GATEWAY, 1)
    engine.abort(GATEWAY, 1)
    assert [delta.finish_reason for delta in deltas_of(engine)] == [FinishReason.NONE, FinishReason.ABORT]
    assert not engine.has_work()
    assert not engine.step()
    assert executor.requests == {}
    assert engine.stats().num_finished[FinishReason.ABORT] == 1
    engine.check_invariants()


def test_a_gateway_cannot_abort_what_is_not_its_own() -> None:
    engine, _ = make_engine()
    engine.add(b"a", request())
    engine.abort(b"b", 1)
    engine.abort(b"a", 2)
    assert engine.has_work()
    assert engine.take_deltas() == {}


def test_abort_all_may_be_limited_to_one_gateway() -> None:
    engine, _ = make_engine()
    engine.add(b"a", request())
    engine.add(b"b", request())
    engine.abort_all(b"a")
    assert set(engine.take_deltas()) == {b"a"}
    engine.abort_all()
    assert set(engine.take_deltas()) == {b"b"}
    assert not engine.has_work()


def test_failing_ends_every_open_request_without_asking_the_core() -> None:
    engine, executor = make_engine(ScriptedExecutor(fail_at_step=2))
    for request_id in (1, 2):
        engine.add(GATEWAY, request(request_id))
    engine.step()
    deltas_of(engine)
    with pytest.raises(FloatingPointError):
        engine.step()
    engine.fail_all("it burned")
    deltas = deltas_of(engine)
    assert {delta.request_id for delta in deltas} == {1, 2}
    assert {(d.error.code, d.error.message) for d in deltas if d.error} == {(ErrorCode.ENGINE_DEAD, "it burned")}
    assert executor.requests == {}


def test_age_counts_towards_the_order_of_service() -> None:
    clock = ManualClock()
    engine, _ = make_engine(clock=clock, max_num_seqs=1)
    engine.add(GATEWAY, request(1, max_tokens=1))
    engine.add(GATEWAY, request(2, max_tokens=1, age_ms=5000.0))
    engine.step()
    assert [delta.request_id for delta in deltas_of(engine)] == [2]


def test_stats_count_what_happened_and_where_time_went() -> None:
    clock = ManualClock()

    class Slow(ScriptedExecutor):
        def execute(self, plan: BatchPlan) -> StepResult:
            clock.advance(0.5)
            return super().execute(plan)

    engine, _ = make_engine(Slow(), clock)
    run(engine, [request(1, request_class=RequestClass.OFFLINE), request(2)])
    stats = engine.stats()
    assert (stats.num_steps, stats.num_output_tokens, stats.num_prompt_tokens) == (3, 6, 10)
    assert (stats.num_finished[FinishReason.LENGTH], stats.num_running, stats.num_waiting) == (2, [0, 0, 0], [0, 0, 0])
    assert (stats.execute_seconds, stats.step_seconds, stats.schedule_seconds) == (1.5, 1.5, 0.0)


def test_requests_that_the_core_lost_are_noticed() -> None:
    engine, _ = make_engine()
    engine.add(GATEWAY, request())
    engine._core.abort(1)
    with pytest.raises(RuntimeError, match="1 requests are open, but the core has none"):
        engine.check_invariants()


def random_tokens(seed: int) -> TokenRule:
    return lambda one, known: int(np.random.default_rng((seed, one.request_id, known)).integers(0, 8))


@given(seed=st.integers(0, 10_000), num_units=st.sampled_from([40, 64, 200]))
@settings(max_examples=25, deadline=None)
def test_every_request_gets_exactly_one_final_delta_under_random_aborts(seed: int, num_units: int) -> None:
    rng = random.Random(seed)
    engine, executor = make_engine(ScriptedExecutor(random_tokens(seed)), num_units=num_units, max_num_waiting=4)
    finals: Counter[tuple[bytes, int]] = Counter()
    submitted: set[tuple[bytes, int]] = set()

    def take() -> None:
        for gateway, deltas in engine.take_deltas().items():
            for delta in deltas:
                assert (gateway, delta.request_id) in submitted
                assert finals[gateway, delta.request_id] == 0, "a delta after the final one"
                finals[gateway, delta.request_id] += delta.finish_reason != FinishReason.NONE

    for request_id in range(40):
        gateway = rng.choice([b"a", b"b"])
        submitted.add((gateway, request_id))
        engine.add(
            gateway, request(request_id, rng.randint(1, 70), rng.randint(1, 30), stop_token_ids=rng.sample(range(8), 1))
        )
        for _ in range(rng.randint(0, 4)):
            engine.step()
            engine.check_invariants()
        if rng.random() < 0.4:
            engine.abort(*rng.choice(sorted(submitted)))
        take()
    while engine.step():
        engine.check_invariants()
    take()
    assert {key for key, count in finals.items() if count == 1} == submitted
    assert executor.requests == {}
    stats = engine.stats()
    assert stats.num_free_units + stats.num_cached_units == stats.num_units


def test_a_request_whose_logits_are_not_finite_fails_and_its_neighbours_go_on() -> None:
    engine, executor = make_engine(ScriptedExecutor(lambda one, known: -1 if one.priority and known == 6 else known))
    deltas = run(engine, [request(1), request(2, priority=1), request(3)])
    last = deltas[2][-1]
    assert (last.finish_reason, last.token_ids) == (FinishReason.ERROR, [])
    assert last.error is not None
    assert last.error.code == ErrorCode.NOT_FINITE
    assert [len(deltas[i]) for i in (1, 2, 3)] == [3, 2, 3]
    assert [deltas[i][-1].finish_reason for i in (1, 3)] == [FinishReason.LENGTH] * 2
    assert engine.stats().num_finished[FinishReason.ERROR] == 1
    assert executor.requests == {}
    engine.check_invariants()


class Lives:
    """An engine with a book of sessions, life after life."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.engine: Engine

    def begin(self, executor: ScriptedExecutor | None = None) -> Engine:
        plain, executor = make_engine(executor)
        book = SessionBook(SessionFiles(self._folder, "model", 10, 1 << 20))
        sessions = BookedSessions(plain._core, book)
        self.engine = Engine(plain._core, executor, LIMITS, ManualClock(), sessions=sessions)
        return self.engine

    def known_later(self) -> dict[tuple[str, str, str], int]:
        """How many tokens of each session an engine after this one knows of."""
        self.engine.close()
        found = SessionFiles(self._folder, "model", 10, 1 << 20).recall()
        return {tuple(name): len(token_ids) for name, token_ids in found}


def test_a_session_is_kept_with_what_its_last_request_computed(tmp_path: Path) -> None:
    lives = Lives(tmp_path)
    of_session = {"session_id": "chat", "tenant": "t", "cache_salt": "t/"}
    run(lives.begin(), [request(1, 5, 3, **of_session), request(2, 9, 2)])
    assert lives.known_later() == {("t", "t/", "chat"): 7}
    engine = lives.begin()
    assert engine.advise(Advisory("chat", AdvisoryEvent.QUERY, tenant="t", cache_salt="t/")).num_tokens == 7
    assert not engine.advise(Advisory("chat", AdvisoryEvent.QUERY, tenant="other", cache_salt="t/")).is_known
    run(engine, [request(1, 12, 3, **of_session)])
    assert lives.known_later() == {("t", "t/", "chat"): 14}


def test_an_aborted_request_leaves_what_it_has_computed(tmp_path: Path) -> None:
    lives = Lives(tmp_path)
    engine = lives.begin()
    engine.add(GATEWAY, request(1, 5, 10, session_id="begun"))
    engine.step()
    engine.add(GATEWAY, request(2, 5, 10, session_id="waiting"))
    engine.abort_all()
    assert lives.known_later() == {("", "", "begun"): 5}


def test_a_request_that_shares_no_cache_is_no_turn_of_its_session(tmp_path: Path) -> None:
    lives = Lives(tmp_path)
    wanting = SamplingParams(num_prompt_logprobs=0)
    run(lives.begin(), [request(1, session_id="chat", sampling=wanting)])
    assert lives.known_later() == {}


def test_a_released_session_is_kept_nowhere(tmp_path: Path) -> None:
    lives = Lives(tmp_path)
    run(lives.begin(), [request(1, session_id="a"), request(2, session_id="b")])
    lives.known_later()
    engine = lives.begin()
    engine.add(GATEWAY, request(1, 5, 9, session_id="a"))
    engine.step()
    engine.advise(Advisory("a", AdvisoryEvent.RELEASE))
    run(engine, [])  # its request ends after it
    engine.advise(Advisory("b", AdvisoryEvent.CANCEL))
    assert [name[2] for name in lives.known_later()] == ["b"]


def test_the_core_of_an_engine_that_failed_is_not_asked_for_sessions(tmp_path: Path) -> None:
    class BrokenCore(Scheduler):
        def session_tokens(self, session_id: str, **options: Any) -> Int32:
            raise CoreError("the table is broken")

    core = BrokenCore(SchedulerConfig(num_units=200, num_layers=2, block_size=4))
    sessions = BookedSessions(core, SessionBook(SessionFiles(tmp_path, "model", 10, 1 << 20)))
    engine = Engine(core, ScriptedExecutor(), LIMITS, ManualClock(), sessions=sessions)
    engine.add(GATEWAY, request(1, session_id="chat"))
    engine.step()
    engine.fail_all("it broke")
    assert deltas_of(engine)[-1].finish_reason == FinishReason.ERROR
    engine.close()


def test_a_reset_drops_what_no_request_uses() -> None:
    engine, _ = make_engine()
    run(engine, [request(1, prompt_length=9)])
    assert engine.reset_prefix_cache() == 2
    assert engine.reset_prefix_cache() == 0
    assert run(engine, [request(2, prompt_length=9)])[2][0].num_cached_tokens == 0


def test_what_a_request_excludes_itself_is_its_own_error() -> None:
    class NothingLeft(ScriptedExecutor):
        def execute(self, plan: BatchPlan) -> StepResult:
            problems = {int(i): "nothing is left" for i in plan.request_ids}
            return StepResult(np.full(len(plan.sample_seqs), NO_TOKEN, np.int32), problems=problems)

    engine, _ = make_engine(NothingLeft())
    error = run(engine, [request(1)])[1][-1].error
    assert error is not None
    assert (error.code, error.message) == (ErrorCode.INVALID, "nothing is left")
