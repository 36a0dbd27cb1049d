"""Masks that nobody needs are not found, and tokens are those of masks that always go first."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fakes.engine_driver import make_engine, output_tokens, run
from fakes.json_schemas import SCHEMAS
from fakes.sampling_plans import sampling_plan
from schedcore.api.model_path import resolve_model
from schedcore.api.types import EngineRequest, Grammar, GrammarKind, SamplingParams
from worker import ops
from worker.grammars.followed_rows import FollowedRows
from worker.grammars.grammars import Grammars
from worker.grammars.matcher import Matcher
from worker.sampling import sampler
from worker.sampling.sampler import Sampler

VOCAB_SIZE, END, OTHER_END = 1024, 5, 4  # of the demo model
NAMES = sorted(SCHEMAS)
MEANS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 0.8, "seed": 6, "top_k": 20, "top_p": 0.9},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"logit_bias": {40: 5.0, END: 4.0}},
    {"bad_words": [[40], [41, 42]]},
    {"num_logprobs": 2},
    {"min_tokens": 12},
]


class MaskedFirst(FollowedRows):
    """The simple way: what is refused becomes minus infinity before a token is chosen."""

    def __init__(self, rows: Any, matchers: Sequence[Matcher], is_greedy: Any) -> None:
        super().__init__(rows, matchers, np.zeros_like(is_greedy))


def draw_from_masked(sampler: Sampler, logits: Any, parameters: Any, drawing: Any, followed: Any) -> Any:
    if followed is not None:
        followed.mask(logits)
    return ops.draw_tokens(logits, parameters, drawing)


def mask_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sampler, "FollowedRows", MaskedFirst)
    patch.setattr(Sampler, "_draw", draw_from_masked)


@pytest.fixture
def grammars() -> Iterator[Grammars]:
    grammars = Grammars(resolve_model("demo"), VOCAB_SIZE)
    yield grammars
    grammars.close()


def request(request_id: int, schema: Any, **means: Any) -> EngineRequest:
    means = {"temperature": 0.0} | means
    return EngineRequest(
        request_id,
        list(range(20, 40)),
        max_tokens=120,
        sampling=SamplingParams(**{name: value for name, value in means.items() if name != "min_tokens"}),
        stop_token_ids=[END],
        min_tokens=means.get("min_tokens", 0),
        grammar=Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)),
    )


def allowed(matcher: Matcher) -> list[int]:
    bits = np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_token_is_taken_where_the_mask_allows_it(grammars: Grammars, name: str) -> None:
    draw = random.Random(name)
    matcher = grammars.compile(request(1, SCHEMAS[name]))
    for _ in range(40):
        few = allowed(matcher)
        for token in {END, OTHER_END, -1, *draw.choices(range(VOCAB_SIZE), k=20), *draw.choices(few, k=5)}:
            other = Matcher(matcher._inner.deep_copy(), [OTHER_END, END], [END], len(matcher.mask))
            assert other.take(token) == (token in few), token
            other.find_mask()  # an unwanted token has changed nothing
            assert token in few or (other.mask == matcher.mask).all()
        closing = [token for token in few if draw.random() < 0.3] or few
        token = draw.choice(closing)
        if token == END:
            break
        matcher.advance(token)
        matcher.find_mask()


def open_all(requests: Sequence[EngineRequest]) -> tuple[Grammars, Sampler]:
    grammars = Grammars(resolve_model("demo"), VOCAB_SIZE)
    for wanted in requests:
        grammars.begin(wanted)
    left = len(requests)
    found = Sampler(len(requests), VOCAB_SIZE, grammars=grammars)
    while left:
        grammars.wait()
        for request_id, problem in grammars.take_compiled():
            assert problem is None
            left -= 1
            found.add(requests[request_id - 1])
    return grammars, found


def some_logits(draw: np.random.Generator, matchers: Sequence[Matcher]) -> torch.Tensor:
    """Of a model that follows its form now and then, with numbers that are not finite once in a while."""
    logits = draw.normal(size=(len(matchers), VOCAB_SIZE)).astype(np.float32)
    for row, matcher in enumerate(matchers):
        few = allowed(matcher)
        if draw.random() < 0.8:
            token = int(draw.choice([t for t in few if t != END] or few))
            logits[row, token] = 20
        if draw.random() < 0.01:
            logits[row, draw.integers(VOCAB_SIZE)] = draw.choice([np.nan, np.inf, -np.inf])
    return torch.from_numpy(logits)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_greedy", [True, False], ids=["greedy", "mixed"])
def test_tokens_are_those_of_masks_that_go_first(seed: int, is_greedy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(seed)
    means = [{}] * 6 if is_greedy else [MEANS[int(i)] for i in draw.permutation(len(MEANS))]
    requests = [request(i, SCHEMAS[str(draw.choice(NAMES))], **m) for i, m in enumerate(means, 1)]
    (grammars, new), (old_grammars, old) = open_all(requests), open_all(requests)
    ids, num_taken = [r.request_id for r in requests], 0
    for step in range(60):
        old_grammars.wait_for_masks()
        logits = some_logits(draw, [old_grammars.matcher(i) for i in ids])
        plan = sampling_plan(ids, [20 + step] * len(ids), [i - 1 for i in ids])
        with monkeypatch.context() as patch:
            mask_first(patch)
            expected, expected_logprobs = old.sample(logits.clone(), plan)
        grammars.wait_for_masks()
        num_taken += sum(not grammars.matcher(i).has_mask for i in ids)
        tokens, logprobs = new.sample(logits.clone(), plan)
        assert tokens.tolist() == expected.tolist()
        assert str(logprobs) == str(expected_logprobs)
        assert new.take_problems() == old.take_problems()
        ended = [i for i, token in zip(ids, tokens.tolist(), strict=True) if token in (END, -1)]
        ids = [i for i in ids if i not in ended]
        if not ids:
            break
    assert num_taken > 0
    grammars.close()
    old_grammars.close()


@pytest.mark.parametrize("settings", [{}, {"cache_memory_bytes": 1 << 20, "max_num_batched_tokens": 64}])
def test_a_whole_engine_says_the_same_with_fewer_masks(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    schemas = [SCHEMAS[name] for name in NAMES[:: len(NAMES) // 14]]
    requests = [request(i, schema, **MEANS[i % len(MEANS)]) for i, schema in enumerate(schemas, 1)]
    requests += [request(100 + i, schema) for i, schema in enumerate(schemas)]
    num_masks = []
    find_mask = Matcher.find_mask

    def counted(matcher: Matcher) -> None:
        num_masks[-1] += 1
        find_mask(matcher)

    monkeypatch.setattr(Matcher, "find_mask", counted)
    tokens, engines = [], []
    for is_simple in (False, True):
        if is_simple:
            mask_first(monkeypatch)
        num_masks.append(0)
        engines.append(make_engine(resolve_model("demo"), **settings))
        tokens.append(output_tokens(run(engines[-1], requests)))
    assert tokens[0] == tokens[1]
    assert num_masks[0] < num_masks[1]
    assert all(bool(engine.stats().num_preemptions) == bool(settings) for engine in engines)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "quantization": "int8"},
        {"cache_memory_bytes": 1 << 20, "max_num_batched_tokens": 64},
    ],
    ids=str,
)
def test_greedy_tokens_of_the_decoder_are_corrected(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests with a grammar come and go beside plain ones: who is in a batch changes all the time."""
    schemas = [SCHEMAS[name] for name in NAMES[:: len(NAMES) // 14]]
    requests = [request(i, schema) for i, schema in enumerate(schemas, 1)]
    plain = SamplingParams(temperature=0.0)
    requests += [EngineRequest(100 + i, list(range(30, 50 + i)), 10 * i, plain) for i in range(1, 8)]
    num_corrected = []
    correct = Sampler.correct

    def counted(sampler: Sampler, *of_step: Any) -> None:
        num_corrected[-1] += 1
        correct(sampler, *of_step)

    monkeypatch.setattr(Sampler, "correct", counted)
    tokens = []
    for is_simple in (False, True):
        if is_simple:
            mask_first(monkeypatch)
        num_corrected.append(0)
        engine = make_engine(resolve_model("demo"), **settings)
        tokens.append(output_tokens(run(engine, requests)))
        tokens.append(output_tokens(run(engine, requests)))  # the same ids once more
        engine.close()
    assert tokens[0] == tokens[1] == tokens[2] == tokens[3]
    assert num_corrected[0] > 50
    assert num_corrected[1] == 0
