"""Guessed tokens change when answers come, never what they are: engines that guess against one that does not."""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes.byte_tokenizer import END, write_byte_checkpoint
from fakes.byte_tokenizer import VOCAB_SIZE as BYTES_VOCAB_SIZE
from fakes.engine_driver import GATEWAY, collect, make_engine, output_tokens, run
from fakes.guessing_engines import (
    CHEAP,
    DEMO_MODEL,
    cheap_profile,
    guessing,
    outcome,
    repetitive_prompts,
    sampled_requests,
)
from fakes.tiny_checkpoints import make_model
from schedcore.api.types import EngineRequest, Grammar, GrammarKind, SamplingParams, TokenDelta
from schedcore.record.replay import replay

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def profile(tmp_path: Path) -> str:
    return cheap_profile(tmp_path)


def steady_clock() -> Callable[[], float]:
    """Every step takes half of what the profile says, however busy the machine is: guesses depend on it."""
    looks = CHEAP.step_base / 4  # apart: before a step is planned, before it runs, and behind it
    return itertools.count(1.0, looks).__next__


def test_a_text_that_repeats_itself_comes_in_fewer_steps(profile: str) -> None:
    requests = [EngineRequest(1, repetitive_prompts(1, seed=3)[0], 64, sampling=SamplingParams(temperature=0.0))]
    plain = make_engine(DEMO_MODEL)
    engine = guessing(profile)
    expected, deltas = run(plain, requests), run(engine, requests)
    assert output_tokens(deltas) == output_tokens(expected)
    assert max(len(delta.token_ids) for delta in deltas[1]) > 4
    stats = engine.stats()
    assert stats.num_steps == len(deltas[1]) < plain.stats().num_steps == 64
    assert stats.num_steps + stats.num_right_guesses == stats.num_output_tokens == 64
    assert stats.num_right_guesses <= stats.num_guessed_tokens
    assert plain.stats().num_guessed_tokens == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_kind_of_sampling_gives_what_it_gives_without_guesses(dtype: str, profile: str) -> None:
    requests = sampled_requests(128, seed=1)  # so many that a busy machine, which guesses less, guesses enough
    plain = make_engine(DEMO_MODEL, dtype=dtype, enable_prefix_caching=False)
    expected = {r.request_id: outcome(run(plain, [r])[r.request_id]) for r in requests}
    engine = guessing(
        profile,
        dtype=dtype,
        cache_memory_bytes=(2 if dtype == "float32" else 1) << 20,
        max_num_batched_tokens=96,
        num_threads=2,
    )
    rng = random.Random(2)
    waiting, neighbours, next_neighbour = list(requests), [], 1000
    deltas: dict[int, list[TokenDelta]] = defaultdict(list)
    while waiting or engine.has_work():
        if waiting and rng.random() < 0.3:
            engine.add(GATEWAY, waiting.pop())
        if waiting and rng.random() < 0.2:
            next_neighbour += 1
            engine.add(GATEWAY, EngineRequest(next_neighbour, rng.choice(requests).prompt_token_ids, 60))
            neighbours.append(next_neighbour)
        if neighbours and (not waiting or rng.random() < 0.2):
            engine.abort(GATEWAY, neighbours.pop())
        engine.step()
        engine.check_invariants()
        collect(engine, deltas)
    for one in requests:
        assert outcome(deltas[one.request_id]) == expected[one.request_id], one
    stats = engine.stats()
    assert stats.num_right_guesses > 100
    assert stats.num_guessed_tokens - stats.num_right_guesses > 100
    assert stats.num_preemptions > 0


def asked_by(tenant: str, requests: list[EngineRequest], first_id: int, salt: str = "") -> list[EngineRequest]:
    return [
        msgspec.structs.replace(one, request_id=first_id + i, tenant=tenant, cache_salt=salt)
        for i, one in enumerate(requests)
    ]


def test_answers_like_earlier_ones_of_the_tenant_come_in_fewer_steps_and_are_the_same(profile: str) -> None:
    requests = sampled_requests(24, seed=8)
    plain, engine = make_engine(DEMO_MODEL), guessing(profile, clock=steady_clock())
    first = run(engine, asked_by("a", requests, 1))
    expected = [outcome(deltas) for _, deltas in sorted(run(plain, asked_by("a", requests, 1)).items())]
    assert [outcome(first[i]) for i in sorted(first)] == expected
    tokens_per_step = []
    for turn, (tenant, salt) in enumerate([("a", ""), ("b", ""), ("a", "b"), ("a", "")], 1):
        before = engine.stats()
        deltas = run(engine, asked_by(tenant, requests, 1 + 100 * turn, salt))
        assert [outcome(deltas[i]) for i in sorted(deltas)] == expected
        after = engine.stats()
        tokens_per_step.append(
            (after.num_output_tokens - before.num_output_tokens) / (after.num_steps - before.num_steps)
        )
    same, other_tenant, other_salt, same_again = tokens_per_step
    assert min(same, same_again) > 1.5 * max(other_tenant, other_salt)


def test_behind_a_grammar_nothing_is_guessed_that_is_not_forced(profile: str, tmp_path: Path) -> None:
    folder = write_byte_checkpoint(tmp_path)
    make_model("llama", vocab_size=BYTES_VOCAB_SIZE).save_pretrained(folder)
    wanted = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(PERSON))
    example = list(json.dumps({"name": "Ann", "age": 30}, separators=(",", ":")).encode())
    extras: list[dict[str, Any]] = [{}, {"presence_penalty": 0.3}, {"bad_words": [[*b'{"']]}, {"num_logprobs": 1}]
    requests = [
        EngineRequest(
            i,
            example * (1 + i % 3),
            300,
            SamplingParams(temperature=i % 2, seed=i, **extras[i % 4]),
            stop_token_ids=[END],
            min_tokens=5,
            grammar=wanted,
        )
        for i in range(1, 17)
    ]
    expected = run(make_engine(folder), requests)
    engine = guessing(profile, folder, cache_memory_bytes=1 << 18, max_num_batched_tokens=64)
    deltas = run(engine, requests)
    assert {i: outcome(d) for i, d in deltas.items()} == {i: outcome(d) for i, d in expected.items()}
    assert engine.stats().num_guessed_tokens == engine.stats().num_right_guesses > 0


def test_decisions_with_guesses_replay(profile: str, tmp_path: Path) -> None:
    path = tmp_path / "decisions"
    engine = guessing(profile, decision_record=str(path))
    requests = sampled_requests(12, seed=5)
    for i, tenant in enumerate(["a", "a", "b"]):
        run(engine, asked_by(tenant, requests, 1 + 100 * i))
    assert engine.stats().num_right_guesses > 0
    engine._core.close()  # type: ignore[attr-defined]
    result = replay(path)
    assert (result.is_identical, result.difference) == (True, None)
    assert result.num_output_tokens == engine.stats().num_output_tokens


def test_where_tokens_may_be_kept_as_hidden_states_nothing_is_guessed(profile: str) -> None:
    engine = guessing(profile, partial_caching=True)
    run(engine, sampled_requests(3, seed=6))
    assert engine.stats().num_guessed_tokens == 0
