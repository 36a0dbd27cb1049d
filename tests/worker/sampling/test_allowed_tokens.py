"""`allowed_token_ids`, `bad_words` and `logprob_token_ids` in the sampler, against a plain twin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.sampling_plans import sampling_plan
from schedcore._core import NO_TOKEN
from schedcore.api.types import EngineRequest, SamplingParams
from worker.sampling.sampler import Sampler

VOCAB_SIZE = 40
PROMPT = [1, 2, 3]


def request(request_id: int, stop: list[int] | None = None, min_tokens: int = 0, **sampling: Any) -> EngineRequest:
    params = SamplingParams(**{"temperature": 0.0} | sampling)
    return EngineRequest(request_id, PROMPT, 100, params, stop_token_ids=stop or [], min_tokens=min_tokens)


def make_sampler(*requests: EngineRequest) -> Sampler:
    sampler = Sampler(8, VOCAB_SIZE)
    for one in requests:
        sampler.add(one)
    return sampler


def generate(sampler: Sampler, ids: list[int], logits: torch.Tensor) -> list[list[int]]:
    """logits [steps, VOCAB_SIZE], the same for all. Tokens by request."""
    steps = []
    for i, row in enumerate(logits):
        plan = sampling_plan(ids, [len(PROMPT) + i] * len(ids))
        steps.append(sampler.sample(row.repeat(len(ids), 1), plan)[0].tolist())
    return [list(tokens) for tokens in zip(*steps, strict=True)]


def twin(params: SamplingParams, logits: torch.Tensor) -> list[int]:
    """Greedy, in the plainest words."""
    out: list[int] = []
    for row in logits:
        best, best_value = NO_TOKEN, -float("inf")
        for token, value in enumerate(row.tolist()):
            is_allowed = params.allowed_token_ids is None or token in params.allowed_token_ids
            is_bad = any([*out, token][-len(word) :] == word for word in params.bad_words)
            if is_allowed and not is_bad and value > best_value:
                best, best_value = token, value
        out.append(best)
    return out


TOKENS = st.integers(0, 4)
WORDS = st.lists(st.lists(TOKENS, min_size=1, max_size=3), max_size=5)


@given(allowed=st.none() | st.lists(TOKENS, min_size=1), words=WORDS, seed=st.integers(0, 999))
@settings(max_examples=150, deadline=None)
def test_as_the_twin_does_in_any_company(allowed: list[int] | None, words: list[list[int]], seed: int) -> None:
    logits = torch.randn(12, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))
    logits[:, :5] += 3.0  # so that the few tokens of the words come often
    asked = request(1, allowed_token_ids=allowed, bad_words=words)
    expected = twin(asked.sampling, logits)
    tokens, _, _ = generate(
        make_sampler(asked, request(2), request(3, temperature=1.0, seed=1, bad_words=[[0]])), [1, 2, 3], logits
    )
    end = expected.index(NO_TOKEN) + 1 if NO_TOKEN in expected else len(expected)  # there the request ends
    assert tokens[:end] == expected[:end]


def test_random_tokens_are_among_the_allowed_and_repeat_with_their_seed() -> None:
    logits = torch.randn(50, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    asked = {"temperature": 1.5, "seed": 7, "allowed_token_ids": [4, 9, 39]}
    tokens = generate(make_sampler(request(1, **asked)), [1], logits)[0]
    assert set(tokens) == {4, 9, 39}
    assert tokens == generate(make_sampler(request(5, **asked), request(6)), [5, 6], logits)[0]


def test_a_request_that_nothing_is_left_to_gets_no_token_and_a_reason() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    sampler = make_sampler(
        request(1, allowed_token_ids=[5], bad_words=[[5]]),
        request(2, allowed_token_ids=[6], stop=[6], min_tokens=3),
        request(3),
    )
    assert generate(sampler, [1, 2, 3], logits) == [[NO_TOKEN], [NO_TOKEN], [0]]
    assert (sampler.take_problems() or {}).keys() == {1, 2}
    assert sampler.take_problems() is None


def test_an_allowed_stop_token_waits_for_min_tokens() -> None:
    logits = torch.zeros(4, VOCAB_SIZE)
    logits[:, 6] = 5.0
    sampler = make_sampler(request(1, allowed_token_ids=[6, 8], stop=[6], min_tokens=2))
    assert generate(sampler, [1], logits) == [[8, 8, 6, 6]]


@pytest.mark.parametrize("params", [{"bad_words": [[7]]}, {"allowed_token_ids": [3, 4]}])
def test_log_probabilities_are_the_models_own(params: dict[str, Any]) -> None:
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(2))
    plan = sampling_plan([1], [len(PROMPT)])
    asked = make_sampler(request(1, num_logprobs=0, logprob_token_ids=[7, 3, 11], **params))
    tokens, entries = asked.sample(logits.clone(), plan)
    assert entries is not None
    expected = logits.log_softmax(-1)[0]
    assert entries[0].logprob == pytest.approx(float(expected[int(tokens[0])]))
    named = sorted(((token, float(expected[token])) for token in (7, 3, 11)), key=lambda pair: -pair[1])
    assert [token for token, _ in entries[0].top] == [token for token, _ in named]
    assert [value for _, value in entries[0].top] == pytest.approx([value for _, value in named])


def test_named_and_likeliest_stand_beside_each_other() -> None:
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    sampler = make_sampler(
        request(1, num_logprobs=2), request(2, num_logprobs=0, logprob_token_ids=[5]), request(3, num_logprobs=0)
    )
    _, entries = sampler.sample(logits.repeat(3, 1), sampling_plan([1, 2, 3], [3, 3, 3]))
    assert entries is not None
    assert [token for token, _ in entries[0].top] == logits[0].topk(2).indices.tolist()
    assert [token for token, _ in entries[1].top] == [5]
    assert entries[2].top == []
