"""The whole sampler on hand-made logits: who gets which token, and that company never matters."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fakes.sampling_plans import sampling_plan
from schedcore._core import NO_TOKEN
from schedcore.api.types import EngineRequest, SamplingParams, TokenLogprobs
from worker.sampling.sampler import Sampler

VOCAB_SIZE = 40
PROMPT = [1, 2, 3]
GREEDY = SamplingParams(temperature=0.0)


def request(request_id: int, prompt: list[int] | None = None, **sampling: Any) -> EngineRequest:
    return EngineRequest(request_id, prompt or PROMPT, max_tokens=100, sampling=SamplingParams(**sampling))


def make_sampler(*requests: EngineRequest, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> Sampler:
    sampler = Sampler(max(8, len(requests)), vocab_size, seed)
    for one in requests:
        sampler.add(one)
    return sampler


def random_logits(rows: int, seed: int = 0, width: int = VOCAB_SIZE) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3


def first_step(sampler: Sampler, logits: torch.Tensor, ids: list[int]) -> list[int]:
    """Tokens of requests that have only their prompt so far."""
    return sampler.sample(logits.clone(), sampling_plan(ids, [len(PROMPT)] * len(ids)))[0].tolist()


def test_greedy_is_argmax_with_or_without_random_neighbours() -> None:
    logits = random_logits(3)
    expected = logits.argmax(-1).tolist()
    assert first_step(make_sampler(*(request(i, temperature=0.0) for i in (1, 2, 3))), logits, [1, 2, 3]) == expected
    mixed = make_sampler(
        request(1, temperature=0.0), request(2, top_p=0.9), request(3, temperature=0.0, num_logprobs=2)
    )
    tokens = first_step(mixed, logits, [1, 2, 3])
    assert [tokens[0], tokens[2]] == [expected[0], expected[2]]


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    logits = random_logits(1)
    assert first_step(make_sampler(request(1, temperature=1e-9)), logits, [1]) == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, 6),
        ({"temperature": 0.5}, 6),
        ({"top_k": 3}, 3),
        ({"top_k": -1}, 6),
        ({"top_p": 0.8}, 3),
        ({"min_p": 0.15}, 4),
        ({"top_k": 4, "top_p": 0.9}, 3),
    ],
)
def test_distribution_is_the_softmax_of_what_the_filters_keep(params: dict[str, Any], kept: int) -> None:
    probabilities = torch.tensor([0.05, 0.4, 0.07, 0.15, 0.03, 0.3], dtype=torch.float64)
    num_draws = 4000
    sampler = make_sampler(*(request(i, seed=i, **params) for i in range(1, num_draws + 1)), vocab_size=6)
    logits = probabilities.log().float().expand(num_draws, -1)
    tokens = first_step(sampler, logits, list(range(1, num_draws + 1)))

    expected = probabilities ** (1 / params.get("temperature", 1.0))
    expected[expected.argsort(descending=True)[kept:]] = 0
    expected = expected / expected.sum()
    counts = np.bincount(tokens, minlength=6)
    allowed = expected.numpy() > 0
    assert counts[~allowed].sum() == 0
    assert chisquare(counts[allowed], expected.numpy()[allowed] * num_draws).pvalue > 0.001


def test_successive_draws_of_one_request_follow_the_distribution() -> None:
    probabilities = np.array([0.5, 0.25, 0.125, 0.125])
    sampler = make_sampler(request(1, seed=11), vocab_size=4)
    logits = torch.from_numpy(probabilities).log().float()[None]
    tokens = [int(sampler.sample(logits.clone(), sampling_plan([1], [len(PROMPT) + i]))[0][0]) for i in range(2000)]
    assert chisquare(np.bincount(tokens, minlength=4), probabilities * 2000).pvalue > 0.001
    pairs = np.bincount(np.array(tokens[:-1]) * 4 + np.array(tokens[1:]), minlength=16)
    assert chisquare(pairs, np.outer(probabilities, probabilities).ravel() * 1999).pvalue > 0.001


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_seeded_request_ignores_its_company_its_row_and_its_place(data: st.DataObject) -> None:
    params = data.draw(st.sampled_from([{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1, "presence_penalty": 0.5}]))
    seed = data.draw(st.integers(-(2**70), 2**70))
    num_known = data.draw(st.integers(3, 20))
    logits = random_logits(1, seed=data.draw(st.integers(0, 1000)))
    alone = make_sampler(request(9, seed=seed, **params))
    expected = alone.sample(logits.clone(), sampling_plan([9], [num_known]))[0][0]

    others = [request(i, **p) for i, p in enumerate(({"temperature": 0.0}, {"seed": 5}, {"top_p": 0.5}, {"top_k": 2}))]
    crowd = make_sampler(request(99, seed=seed, **params), *others)
    ids = data.draw(st.permutations([99, *(other.request_id for other in others)]))
    rows = data.draw(st.permutations(range(5)))
    stack = torch.cat([logits if i == 99 else random_logits(1, seed=i) for i in ids])
    tokens, _ = crowd.sample(stack, sampling_plan(ids, [num_known if i == 99 else 7 for i in ids], rows))
    assert tokens[ids.index(99)] == expected


def test_a_request_that_moves_rows_keeps_its_parameters() -> None:
    logits = random_logits(2)
    sampler = make_sampler(request(1, seed=3), request(2, temperature=0.0, num_logprobs=0))
    before, _ = sampler.sample(logits.clone(), sampling_plan([1, 2], [3, 3], rows=[0, 1]))
    after, _ = sampler.sample(logits.clone(), sampling_plan([1, 2], [3, 3], rows=[1, 0]))
    assert before.tolist() == after.tolist()


def test_an_id_may_be_used_again_in_the_same_row() -> None:
    logits = random_logits(1)
    sampler = make_sampler(request(1, logit_bias={7: 100.0}, temperature=0.0))
    assert first_step(sampler, logits, [1]) == [7]
    sampler.remove(1)
    sampler.add(request(1, logit_bias={8: 100.0}, temperature=0.0))
    assert first_step(sampler, logits, [1]) == [8]
    sampler.remove(1)
    sampler.add(request(2, logit_bias={8: 100.0}, temperature=0.0))
    assert first_step(sampler, logits, [1]) == logits.argmax(-1).tolist()


def test_requests_without_a_seed_differ_but_repeat_under_the_same_engine_seed() -> None:
    logits = torch.zeros(8, 40)
    ids = list(range(1, 9))
    first, again, other = (
        first_step(make_sampler(*(request(i) for i in ids), seed=seed), logits, ids) for seed in (1, 1, 2)
    )
    assert len(set(first)) > 3
    assert first == again
    assert first != other


def test_forbidden_tokens_are_never_drawn_even_at_the_edges_of_the_vocabulary() -> None:
    params = {"logit_bias": {0: -math.inf, VOCAB_SIZE - 1: -math.inf}}
    ids = list(range(1, 501))
    sampler = make_sampler(*(request(i, seed=i, **params) for i in ids))
    tokens = first_step(sampler, torch.zeros(500, VOCAB_SIZE), ids)
    assert {0, VOCAB_SIZE - 1}.isdisjoint(tokens)
    assert len(set(tokens)) == VOCAB_SIZE - 2


def test_logit_bias_moves_only_its_request() -> None:
    logits = random_logits(2)
    sampler = make_sampler(request(1, temperature=0.0, logit_bias={5: 50.0}), request(2, temperature=0.0))
    assert first_step(sampler, logits, [1, 2]) == [5, int(logits[1].argmax())]


def test_stop_tokens_are_out_of_reach_until_min_tokens() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, 4], logits[0, 6], logits[0, 9] = 3.0, 2.0, 1.0
    one = EngineRequest(1, PROMPT, 100, GREEDY, min_tokens=2, stop_token_ids=[4, 6, 10_000])
    sampler = make_sampler(one)
    tokens = [int(sampler.sample(logits.clone(), sampling_plan([1], [3 + i]))[0][0]) for i in range(4)]
    assert tokens == [9, 9, 4, 4]


def penalised(logits: list[float], prompt: list[int], output: list[int], params: SamplingParams) -> list[float]:
    """The plain twin: one token at a time, as the definitions read."""
    adjusted = list(logits)
    for token in range(len(logits)):
        adjusted[token] += params.logit_bias.get(token, 0.0)
        if token in prompt or token in output:
            positive = adjusted[token] > 0
            adjusted[token] = (
                adjusted[token] / params.repetition_penalty
                if positive
                else (adjusted[token] * params.repetition_penalty)
            )
        adjusted[token] -= params.frequency_penalty * output.count(token)
        adjusted[token] -= params.presence_penalty if token in output else 0.0
    return adjusted


tokens_of = st.lists(st.integers(0, 11), min_size=1, max_size=12)


@given(
    prompts=st.tuples(tokens_of, tokens_of),
    repetition=st.sampled_from([1.0, 1.3, 0.8]),
    presence=st.sampled_from([0.0, 0.7, -0.4]),
    frequency=st.sampled_from([0.0, 0.5, -0.2]),
    bias=st.dictionaries(st.integers(0, 11), st.floats(-3, 3, width=32), max_size=3),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_penalties_equal_their_plain_definition(
    prompts: tuple[list[int], list[int]],
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
    seed: int,
) -> None:
    params = SamplingParams(
        temperature=0.0,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
    )
    requests = [EngineRequest(i, prompt, 100, params) for i, prompt in enumerate(prompts)]
    sampler = make_sampler(*requests, vocab_size=12)
    outputs: list[list[int]] = [[], []]
    for step in range(6):
        logits = random_logits(2, seed + step, width=12)
        given_logits = logits.tolist()
        seq_lens = [len(prompt) + step for prompt in prompts]
        chosen, _ = sampler.sample(logits, sampling_plan([0, 1], seq_lens))
        for row, token in enumerate(chosen.tolist()):
            expected = penalised(given_logits[row], prompts[row], outputs[row], params)
            assert expected[token] == pytest.approx(max(expected), abs=1e-4)
            outputs[row].append(token)


def test_histories_outgrow_their_first_allocation() -> None:
    sampler = make_sampler(request(1, temperature=0.0, presence_penalty=100.0), vocab_size=300)
    logits = torch.arange(300, dtype=torch.float32)[None] / 100
    tokens = [int(sampler.sample(logits.clone(), sampling_plan([1], [3 + i]))[0][0]) for i in range(300)]
    assert tokens == list(range(299, -1, -1))


def test_logprobs_are_the_models_own_whatever_changes_the_choice() -> None:
    logits = random_logits(2)
    raw = logits.log_softmax(-1)
    params = {"temperature": 0.3, "top_k": 1, "logit_bias": {5: 100.0}, "num_logprobs": 3}
    sampler = make_sampler(request(1, **params), request(2, temperature=0.0))
    tokens, logprobs = sampler.sample(logits, sampling_plan([1, 2], [3, 3]))
    assert tokens[0] == 5
    assert logprobs is not None
    assert set(logprobs) == {0}
    entry = logprobs[0]
    assert entry.logprob == pytest.approx(float(raw[0, 5]))
    assert entry.rank == int((raw[0] > raw[0, 5]).sum()) + 1
    assert [token for token, _ in entry.top] == raw[0].argsort(descending=True)[:3].tolist()
    assert [value for _, value in entry.top] == pytest.approx(raw[0].sort(descending=True).values[:3].tolist())


def test_each_request_gets_as_many_alternatives_as_it_asked_for() -> None:
    sampler = make_sampler(*(request(i, temperature=0.0, num_logprobs=n) for i, n in enumerate((0, 4, None, 1))))
    _, logprobs = sampler.sample(random_logits(4), sampling_plan([0, 1, 2, 3], [3] * 4))
    assert logprobs is not None
    assert {i: len(entry.top) for i, entry in logprobs.items()} == {0: 0, 1: 4, 3: 1}
    assert all(isinstance(entry, TokenLogprobs) and entry.rank == 1 for entry in logprobs.values())


def test_more_alternatives_than_tokens_are_all_tokens() -> None:
    sampler = make_sampler(request(1, temperature=0.0, num_logprobs=50), vocab_size=6)
    _, logprobs = sampler.sample(random_logits(1, width=6), sampling_plan([1], [3]))
    assert logprobs is not None
    assert len(logprobs[0].top) == 6


def test_an_empty_batch_samples_nothing() -> None:
    sampler = make_sampler(request(1, seed=1, num_logprobs=1, presence_penalty=1.0))
    tokens, _ = sampler.sample(torch.zeros(0, VOCAB_SIZE), sampling_plan([], []))
    assert tokens.tolist() == []


def test_random_mixtures_of_everything_leave_greedy_requests_alone() -> None:
    rng = random.Random(0)
    menu: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {},
        {"top_p": 0.5},
        {"top_k": 3, "num_logprobs": 2},
        {"min_p": 0.2, "frequency_penalty": 0.5},
        {"temperature": 0.0, "logit_bias": {1: 3.0}},
    ]
    for trial in range(20):
        choices = [rng.choice(menu) for _ in range(8)]
        sampler = make_sampler(*(request(i, **params) for i, params in enumerate(choices)))
        logits = random_logits(8, seed=trial)
        tokens = first_step(sampler, logits, list(range(8)))
        for row, params in enumerate(choices):
            if params == {"temperature": 0.0}:
                assert tokens[row] == int(logits[row].argmax())


def test_a_row_that_is_not_finite_gets_no_token_whatever_is_asked_for() -> None:
    """And nothing is remembered of it, nor do its neighbours notice."""
    logits = random_logits(6)
    logits[::2] = float("nan")
    asked: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"frequency_penalty": 1.0, "num_logprobs": 3},
        {"top_p": 0.5, "logit_bias": {4: 5.0}},
    ]
    sampler = make_sampler(*(request(1 + 2 * i + j, **one) for i, one in enumerate(asked) for j in (0, 1)))
    for _ in range(2):
        tokens = first_step(sampler, logits, list(range(1, 7)))
        assert tokens[::2] == [NO_TOKEN] * 3
        assert min(tokens[1::2]) >= 0
