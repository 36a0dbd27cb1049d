"""Tokens that a grammar forces come several per step, and are those that come one by one."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from fakes.engine_driver import GATEWAY, collect, make_engine, run
from fakes.guessing_engines import cheap_profile, guessing
from fakes.json_schemas import SCHEMAS
from schedcore._core import NO_TOKEN, BatchPlan
from schedcore.api.model_path import resolve_model
from schedcore.api.types import EngineRequest, Grammar, GrammarKind, SamplingParams, TokenDelta, TokenLogprobs
from schedcore.record.replay import replay
from worker.grammars.forced_spans import ForcedSpans, Span
from worker.grammars.forced_worth import ForcedWorth
from worker.grammars.grammars import Grammars
from worker.grammars.matcher import Matcher
from worker.process.engine import Engine
from worker.sampling.forced_rows import ForcedRows

VOCAB_SIZE, END = 1024, 5  # of the demo model
DEMO_MODEL = resolve_model("demo")
NAMES = sorted(SCHEMAS)
ORDER = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 6},
        "quantity": {"type": "integer", "minimum": 0, "maximum": 99},
        "delivered": {"type": "boolean"},
    },
    "required": ["customer", "quantity", "delivered"],
    "additionalProperties": False,
}


@pytest.fixture
def grammars() -> Iterator[Grammars]:
    grammars = Grammars(DEMO_MODEL, VOCAB_SIZE)
    yield grammars
    grammars.close()


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Forced tokens always pay, and to ask for them does."""
    monkeypatch.setattr(ForcedWorth, "wants", lambda _: True)
    return cheap_profile(tmp_path)


def forcing(profile: str, **settings: Any) -> Engine:
    return guessing(profile, DEMO_MODEL, **settings)


def request(request_id: int, schema: Any = ORDER, **means: Any) -> EngineRequest:
    fields: dict[str, Any] = {"stop_token_ids": [END], "max_tokens": 120}
    fields |= {name: means.pop(name) for name in ("stop_token_ids", "max_tokens", "min_tokens") if name in means}
    return EngineRequest(
        request_id,
        [20 + request_id % 7, *range(20, 40)],
        sampling=SamplingParams(**{"temperature": 0.0, **means}),
        grammar=Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)),
        **fields,
    )


def outcome(deltas: list[TokenDelta]) -> tuple[Any, ...]:
    tokens = [token for delta in deltas for token in delta.token_ids]
    logprobs = [entry for delta in deltas for entry in delta.logprobs or ()]
    return tokens, logprobs, deltas[-1].finish_reason, deltas[-1].stop_token_id, deltas[-1].error


def alone(requests: list[EngineRequest], **settings: Any) -> dict[int, tuple[Any, ...]]:
    plain = make_engine(DEMO_MODEL, enable_prefix_caching=False, **settings)
    return {r.request_id: outcome(run(plain, [r])[r.request_id]) for r in requests}


# ---- what is forced ----


def only_token(matcher: Matcher) -> int | None:
    allowed = np.flatnonzero(np.unpackbits(matcher.mask.view(np.uint8), bitorder="little"))
    return int(allowed[0]) if len(allowed) == 1 else None


@pytest.mark.parametrize("name", NAMES)
def test_forced_tokens_are_those_that_masks_leave_alone(grammars: Grammars, name: str) -> None:
    draw = random.Random(name)
    for _ in range(3):
        matcher = grammars.compile(request(1, SCHEMAS[name]))
        expected: list[int] = []
        for _ in range(60):
            only = only_token(matcher)
            if expected:
                assert only == expected.pop(0)  # as named when the span began
            elif matcher.find_forced():
                assert matcher.forced[0] == only
                expected = matcher.forced[1:]
            else:
                assert only is None or only == END
            allowed = np.flatnonzero(np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")).tolist()
            token = draw.choice(allowed)
            if token == END:
                break
            matcher.advance(token)
            matcher.find_mask()


def test_a_token_that_would_stop_the_request_is_not_forced(grammars: Grammars) -> None:
    schema = {"const": "forced"}
    plain = grammars.compile(request(1, schema))
    plain.advance(next(t for t in range(VOCAB_SIZE) if plain.mask[t // 32] >> (t % 32) & 1))
    assert plain.find_forced()
    span = list(plain.forced)
    assert len(span) > 1
    for i, stop in enumerate(span):
        other = grammars.compile(request(1, schema, stop_token_ids=[END, stop]))
        other._inner = plain._inner.deep_copy()
        assert other.find_forced() == (i > 0)
        assert other.forced == span[: span.index(stop)]


# ---- what comes of it ----


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_hundred_schemas_in_fewer_steps(profile: str, temperature: float) -> None:
    plain, engine = make_engine(DEMO_MODEL), forcing(profile)
    for i, name in enumerate(NAMES, 1):
        one = request(i, SCHEMAS[name], temperature=temperature, seed=i)
        assert outcome(run(engine, [one])[i]) == outcome(run(plain, [one])[i]), name
    stats = engine.stats()
    assert stats.num_right_guesses == stats.num_guessed_tokens
    assert stats.num_steps + stats.num_right_guesses == stats.num_output_tokens
    assert stats.num_steps < 0.9 * plain.stats().num_steps


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_answers_are_those_without_among_others_preempted_chunked_and_aborted(dtype: str, profile: str) -> None:
    rng = random.Random(dtype)
    requests = []
    for i in range(1, 33):
        means: dict[str, Any] = rng.choice([{}, {"min_tokens": 12}, {"presence_penalty": 0.5}, {"num_logprobs": 1}, {}])
        if i % 2:
            means = {**means, "temperature": 0.9, "seed": i}
        requests.append(request(i, SCHEMAS[rng.choice(NAMES)] if i % 3 else ORDER, **means))
    expected = alone(requests, dtype=dtype)
    memory = (2 if dtype == "float32" else 1) << 19
    engine = forcing(profile, dtype=dtype, cache_memory_bytes=memory, max_num_batched_tokens=48)
    waiting, neighbours, next_neighbour = list(requests), [], 1000
    deltas: dict[int, list[TokenDelta]] = defaultdict(list)
    while waiting or engine.has_work():
        if waiting and rng.random() < 0.4:
            engine.add(GATEWAY, waiting.pop())
        if waiting and rng.random() < 0.2:
            next_neighbour += 1
            plain = EngineRequest(next_neighbour, rng.choices(range(6, VOCAB_SIZE), k=9) * 3, 60)
            engine.add(GATEWAY, request(next_neighbour) if next_neighbour % 2 else plain)
            neighbours.append(next_neighbour)
        if neighbours and (not waiting or rng.random() < 0.2):
            engine.abort(GATEWAY, neighbours.pop())
        engine.step()
        engine.check_invariants()
        collect(engine, deltas)
    for one in requests:
        assert outcome(deltas[one.request_id]) == expected[one.request_id], one
    stats = engine.stats()
    assert stats.num_right_guesses > 50
    assert stats.num_preemptions > 0


@pytest.mark.parametrize(
    ("means", "is_forced"),
    [
        ({}, True),
        ({"min_tokens": 30}, True),
        ({"bad_words": [[41, 42], [40]]}, False),
        ({"allowed_token_ids": list(range(VOCAB_SIZE - 200))}, False),
        ({"num_logprobs": 2}, False),
        ({"repetition_penalty": 1.2}, False),
        ({"logit_bias": {40: -100.0}}, False),
        ({"max_tokens": 13}, True),
        ({"stop_token_ids": [END, *range(100, 140)]}, True),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_else_is_asked_for_counts(
    means: dict[str, Any], is_forced: bool, temperature: float, profile: str
) -> None:
    requests = [request(i, **{**means, "temperature": temperature, "seed": i}) for i in range(1, 5)]
    engine = forcing(profile)
    deltas = run(engine, requests)
    assert {i: outcome(d) for i, d in deltas.items()} == alone(requests)
    stats = engine.stats()
    assert stats.num_guessed_tokens == stats.num_right_guesses
    assert (stats.num_guessed_tokens > 0) == is_forced


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_resumed_answer_goes_on_within_a_span(temperature: float, profile: str) -> None:
    whole = request(1, temperature=temperature, seed=4)
    expected = alone([whole])[1]
    engine = forcing(profile)
    for num_prior in range(1, len(expected[0])):
        prompt = [*whole.prompt_token_ids, *expected[0][:num_prior]]
        rest = msgspec.structs.replace(whole, prompt_token_ids=prompt, num_prior_tokens=num_prior, max_tokens=90)
        tokens, *others = outcome(run(engine, [rest])[1])
        assert (expected[0][:num_prior] + tokens, *others) == expected
    assert engine.stats().num_right_guesses > 0


def test_decisions_replay(profile: str, tmp_path: Path) -> None:
    path = tmp_path / "decisions"
    engine = forcing(profile, decision_record=str(path), max_num_seqs=12)
    run(engine, [request(i, temperature=i % 2, seed=i) for i in range(1, 9)])
    assert engine.stats().num_right_guesses > 0
    engine._core.close()  # type: ignore[attr-defined]
    result = replay(path)
    assert (result.is_identical, result.difference) == (True, None)
    assert result.num_output_tokens == engine.stats().num_output_tokens


def test_nobody_is_asked_long_where_forced_tokens_do_not_pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    find_forced = Matcher.find_forced
    monkeypatch.setattr(Matcher, "find_forced", lambda self: asked.append(self.request_id) or find_forced(self))
    engine = forcing(cheap_profile(tmp_path), max_num_seqs=1)  # no row is left for a guess
    run(engine, [request(i) for i in range(1, 33)])
    stats = engine.stats()
    assert stats.num_guessed_tokens == 0
    assert stats.num_steps > 600
    assert 0 < len(asked) < 0.3 * stats.num_steps


def test_answers_are_those_without_where_it_is_asked_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(3)
    monkeypatch.setattr(ForcedWorth, "wants", lambda _: rng.random() < 0.5)
    engine, requests = forcing(cheap_profile(tmp_path)), [request(i) for i in range(1, 17)]
    found = {request_id: outcome(deltas) for request_id, deltas in run(engine, requests).items()}
    assert found == alone(requests)
    assert engine.stats().num_right_guesses == engine.stats().num_guessed_tokens > 0


@pytest.mark.parametrize(("saved", "is_asked"), [(0.0, False), (6e-6, False), (14e-6, True)])
def test_who_asks_is_whom_it_pays(saved: float, is_asked: bool) -> None:
    worth, num_asked = ForcedWorth(), 0
    for _ in range(3000):
        if worth.wants():
            num_asked += 1
            worth.on_saved(saved)
            worth.on_asked(10e-6)
    assert num_asked == 3000 if is_asked else num_asked < 300


def test_it_is_asked_again_where_it_pays_now() -> None:
    worth = ForcedWorth()
    for _ in range(1000):
        if worth.wants():
            worth.on_asked(10e-6)
    for _ in range(10_000):
        if worth.wants():
            worth.on_saved(30e-6)
            worth.on_asked(10e-6)
    assert sum(worth.wants() for _ in range(300)) == 300


# ---- rows ----


class Inner:
    """A matcher's own, that allows all."""

    def consume_token(self, token: int) -> bool:
        return True

    def compute_ff_tokens(self) -> list[int]:
        return [7, 8, 9]


class Plan:
    """Two requests: 1 with three rows, 2 with one."""

    request_ids = np.array([1, 1, 1, 2], np.uint64)
    sample_seqs = np.arange(4, dtype=np.int32)
    query_start = np.arange(5, dtype=np.int32)
    token_ids = np.array([3, 7, 8, 4], np.int32)
    num_tokens = num_seqs = 4


def asking_matchers(*request_ids: int) -> list[Matcher]:
    matchers = []
    for request_id in request_ids:
        matcher = Matcher(cast(Any, Inner()), [END], [END], 1)
        matcher.request_id, matcher.names_forced = request_id, True
        matchers.append(matcher)
    return matchers


def waiting_spans() -> tuple[list[Span], BatchPlan]:
    spans, plan = ForcedSpans(), cast(BatchPlan, Plan())
    matchers = asking_matchers(1, 2, 3)
    spans.ask(matchers, np.array([3, 4, 5], np.int32), matchers)
    spans.remove(3)
    assert spans.take_unnamed() == [(1, [7, 8, 9]), (2, [7, 8, 9])]
    assert spans.take_unnamed() == []
    return spans.follow(plan), plan


def test_two_forced_rows_of_four_save_half_of_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[float] = []
    spent: list[float] = []
    monkeypatch.setattr(ForcedWorth, "on_saved", lambda _, seconds: saved.append(seconds))
    monkeypatch.setattr(ForcedWorth, "on_asked", lambda _, seconds: spent.append(seconds))
    times = iter([0.0, 1.0, 10.0, 14.0, 14.0, 17.0])  # asked in 1, a step of 4, asked in 3
    spans = ForcedSpans(clock=lambda: next(times))
    for matchers in (asking_matchers(1, 2), asking_matchers()):
        spans.ask(matchers, np.arange(len(matchers), dtype=np.int32), matchers)
        spans.follow(cast(BatchPlan, Plan()))
    assert (saved, spent) == ([2.0], [1.0, 3.0])


def test_a_matcher_moves_on_by_what_the_plan_computes() -> None:
    spans, _ = waiting_spans()
    assert [(span.row, span.num_forced) for span in spans] == [(0, 2), (3, 0)]
    assert all(not span.matcher.forced for span in spans)


def test_forced_rows_are_left_out_and_completed() -> None:
    spans, plan = waiting_spans()
    rows = ForcedRows(plan, spans)
    assert rows.rest.sample_seqs.tolist() == [2, 3]
    assert rows.rest.num_tokens == 4
    entry = TokenLogprobs(11, -1.0, 1, [])
    tokens, logprobs = rows.complete(np.array([10, 11], np.int32), {1: entry})
    assert tokens.tolist() == [7, 8, 10, 11]
    assert logprobs == {3: entry}


@pytest.mark.parametrize(("allows", "expected"), [(1, [NO_TOKEN] * 3), (0, [7, 8, NO_TOKEN])])
def test_behind_numbers_that_are_not_finite_a_span_has_no_tokens(allows: int, expected: list[int]) -> None:
    spans, plan = waiting_spans()
    spans[0].matcher.mask[:] = allows  # 0: its grammar is to blame, not the model
    tokens, _ = ForcedRows(plan, spans).complete(np.array([NO_TOKEN, 11], np.int32), None)
    assert tokens.tolist() == [*expected, 11]
