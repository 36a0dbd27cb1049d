"""A small model guesses: answers come in fewer steps and are what they are without it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fakes.engine_driver import GATEWAY, greedy_requests, make_engine, output_tokens, run
from fakes.guessing_engines import CHEAP, DEMO_MODEL, cheap_profile, guessing, outcome, sampled_requests
from fakes.tiny_checkpoints import make_model
from schedcore.api.types import EngineRequest, SamplingParams
from schedcore.record.replay import replay
from worker.process.engine import Engine
from worker.speculation.model_guesser import ModelGuesser

OTHER_VOCAB_SIZE = 1024
PROMPTS = [[300 + 7 * i, 11, 400 + 13 * i, 29, 500 + i, 600] for i in range(6)]  # nothing of it repeats itself


@pytest.fixture
def profile(tmp_path: Path) -> str:
    return cheap_profile(tmp_path)


def clock(share_of_step: float) -> Callable[[], float]:
    """Every look at it is so much later, however busy the machine is; a step takes two."""
    return itertools.count(1.0, share_of_step * CHEAP.step_base).__next__


def with_small_model(profile: str, folder: Path = DEMO_MODEL, **settings: Any) -> Engine:
    """A step takes half of what the profile says, and the small model next to nothing of that."""
    engine = guessing(profile, **{"speculative_model": str(folder), "clock": clock(1 / 4), **settings})
    small_model_of(engine)._clock = clock(1 / 200)
    for _ in range(20):
        small_model_of(engine).measure()
    return engine


def small_model_of(engine: Engine) -> ModelGuesser:
    assert isinstance(engine._guesser, ModelGuesser)
    return engine._guesser


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the demo's vocabulary, and with nothing to say that the demo would."""
    folder: Path = tmp_path_factory.mktemp("other")
    make_model("llama", vocab_size=OTHER_VOCAB_SIZE).save_pretrained(folder)
    return folder


def test_who_guesses_right_saves_steps(profile: str) -> None:
    requests = greedy_requests(PROMPTS, 60)
    plain, engine = make_engine(DEMO_MODEL), with_small_model(profile)
    expected, deltas = run(plain, requests), run(engine, requests)
    assert output_tokens(deltas) == output_tokens(expected)
    stats = engine.stats()
    assert stats.num_right_guesses >= 0.95 * stats.num_guessed_tokens > 0  # it is the model itself
    assert stats.num_steps < plain.stats().num_steps / 3
    assert stats.guess_seconds > 0
    assert make_engine(DEMO_MODEL).stats().guess_seconds == 0


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_it_draws_with_the_noise_of_the_request(temperature: float, profile: str) -> None:
    """With or without a seed of its own, from the second token on, and beside penalties."""
    requests = [
        EngineRequest(
            i + 1,
            prompt,
            50,
            SamplingParams(temperature=temperature, seed=[None, 5][i % 2], presence_penalty=[0.0, 0.5][i // 2 % 2]),
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    expected, engine = run(make_engine(DEMO_MODEL), requests), with_small_model(profile)
    deltas = run(engine, requests)
    assert {i: outcome(d) for i, d in deltas.items()} == {i: outcome(d) for i, d in expected.items()}
    stats = engine.stats()
    assert stats.num_right_guesses > 0.95 * stats.num_guessed_tokens > 100


def test_who_guesses_wrong_changes_no_answer_and_is_asked_less(profile: str, other_model: Path) -> None:
    requests = sampled_requests(24, seed=3)
    expected = run(make_engine(DEMO_MODEL), requests)
    engine = with_small_model(profile, other_model)
    deltas = run(engine, requests)
    assert {i: outcome(d) for i, d in deltas.items()} == {i: outcome(d) for i, d in expected.items()}
    guesser, questions = small_model_of(engine), 0
    answer = guesser.answer

    def counted(num_tokens: int, asked: Any) -> Any:
        nonlocal questions
        questions += 1
        return answer(num_tokens, asked)

    guesser.answer = counted  # type: ignore[method-assign]
    run(engine, [msgspec.structs.replace(r, request_id=1000) for r in greedy_requests(PROMPTS[:1], 80)])
    assert questions <= 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_kind_of_request_in_a_pool_that_is_too_small(dtype: str, profile: str) -> None:
    requests = sampled_requests(40, seed=11)
    plain = make_engine(DEMO_MODEL, dtype=dtype, enable_prefix_caching=False)
    expected = {r.request_id: outcome(run(plain, [r])[r.request_id]) for r in requests}
    pool = (6 if dtype == "float32" else 3) << 18
    engine = with_small_model(profile, dtype=dtype, cache_memory_bytes=pool, max_num_batched_tokens=96)
    deltas = run(engine, requests)
    assert {i: outcome(d) for i, d in deltas.items()} == expected
    assert engine.stats().num_preemptions > 0
    assert engine.stats().num_right_guesses > 0
    assert not small_model_of(engine)._requests
    assert not small_model_of(engine)._own.has_work()


def test_requests_that_end_or_are_aborted_leave_nothing(profile: str) -> None:
    engine = with_small_model(profile)
    for request in greedy_requests(PROMPTS, 60):
        engine.add(GATEWAY, request)
    for _ in range(4):
        engine.step()
    engine.abort_all()
    while engine.has_work():
        engine.step()
    guesser = small_model_of(engine)
    assert not guesser._requests
    assert not guesser._known
    guesser._own.check_invariants()


def test_what_it_has_read_is_shared_as_prefixes_are(profile: str) -> None:
    """Neither another tenant nor another salt sees by the small model's time what somebody else has asked."""
    prompt = [*range(100, 164)]

    def num_cached(tenant: str, salt: str, request_id: int) -> int:
        before = guesser._own.stats()["num_cached_prompt_tokens"]
        guesser.add(EngineRequest(request_id, prompt, 8, tenant=tenant, cache_salt=salt))
        guesser.answer(1, [(request_id, np.array(prompt, np.int32), 0)])
        return int(guesser._own.stats()["num_cached_prompt_tokens"] - before)

    guesser = small_model_of(with_small_model(profile))
    assert num_cached("a", "a", 1) == 0
    assert num_cached("a", "a", 2) > 0
    assert num_cached("b", "b", 3) == 0


def test_a_long_text_is_read_over_several_questions(profile: str) -> None:
    guesser = small_model_of(with_small_model(profile, max_num_seqs=2))
    text = np.random.default_rng(1).integers(6, 1000, 1500).astype(np.int32)
    answers = [dict(guesser.answer(1, [(1, text, 3)])) for _ in range(3)]
    assert answers[0] == {}  # a step reads 1,024 tokens
    assert [list(answer) for answer in answers[1:]] == [[1], [1]]
    assert guesser._known == {1}


def test_what_it_cannot_read_is_not_guessed(profile: str, tmp_path: Path) -> None:
    make_model("llama", vocab_size=OTHER_VOCAB_SIZE - 24, max_position_embeddings=48).save_pretrained(
        tmp_path / "short"
    )
    guesser = small_model_of(with_small_model(profile, tmp_path / "short"))
    short, unknown = np.full(40, 7, np.int32), np.array([5, OTHER_VOCAB_SIZE - 3], np.int32)
    assert list(guesser.answer(4, [(1, short, 0), (2, unknown, 0), (3, np.full(45, 7, np.int32), 0)])) == [1]


def test_decisions_replay(profile: str, tmp_path: Path, other_model: Path) -> None:
    for name, folder in (("right", DEMO_MODEL), ("wrong", other_model)):
        path = tmp_path / name
        engine = with_small_model(profile, folder, decision_record=str(path))
        run(engine, sampled_requests(12, seed=5))
        assert engine.stats().num_guessed_tokens > 0
        engine._core.close()  # type: ignore[attr-defined]
        result = replay(path)
        assert (result.is_identical, result.difference) == (True, None)


def test_a_model_of_another_vocabulary_is_refused(profile: str, tmp_path: Path) -> None:
    make_model("llama", vocab_size=4000).save_pretrained(tmp_path / "large")
    with pytest.raises(ValueError, match="large has 4000 tokens and the model has 1024"):
        with_small_model(profile, tmp_path / "large")


def test_a_model_that_is_not_there_is_named(profile: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"speculative_model: model '.*nowhere' is neither"):
        with_small_model(profile, tmp_path / "nowhere")


def test_it_needs_speculation() -> None:
    with pytest.raises(ValueError, match="speculative_model needs speculation auto"):
        make_engine(DEMO_MODEL, speculative_model=str(DEMO_MODEL))
