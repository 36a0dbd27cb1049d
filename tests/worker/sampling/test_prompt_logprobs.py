"""Log-probabilities of the prompt against transformers, in one piece, in chunks and after preemption."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from fakes.engine_driver import greedy_requests, make_engine, output_tokens, run
from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint
from schedcore.api.types import EngineRequest, SamplingParams, TokenDelta, TokenLogprobs

PROMPT = [random.Random(3).randrange(VOCAB_SIZE) for _ in range(300)]
WANTING = SamplingParams(temperature=0.0, num_logprobs=1, num_prompt_logprobs=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> torch.Tensor:
    """[len(PROMPT), VOCAB_SIZE]; row p is the distribution of token p + 1."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logprobs: torch.Tensor = model(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    return logprobs


def request(request_id: int = 1, prompt: list[int] = PROMPT) -> EngineRequest:
    return EngineRequest(request_id, prompt, max_tokens=2, sampling=WANTING)


def check(deltas: list[TokenDelta], expected: torch.Tensor, length: int = len(PROMPT)) -> None:
    first, *rest = deltas
    assert all(delta.prompt_logprobs is None for delta in rest)
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert len(first.prompt_logprobs) == length
    for position, entry in enumerate(first.prompt_logprobs[1:]):
        assert isinstance(entry, TokenLogprobs)
        assert entry.token_id == PROMPT[position + 1]
        assert entry.logprob == pytest.approx(float(expected[position, entry.token_id]), abs=1e-3)
        assert [token for token, _ in entry.top] == expected[position].topk(2).indices.tolist()
    assert first.logprobs is not None
    assert first.logprobs[0].logprob == pytest.approx(float(expected[length - 1].max()), abs=1e-3)


@pytest.mark.parametrize("max_num_batched_tokens", [2048, 37])
def test_prompt_logprobs_equal_those_of_transformers(
    folder: Path, expected: torch.Tensor, max_num_batched_tokens: int
) -> None:
    engine = make_engine(folder, max_num_batched_tokens=max_num_batched_tokens)
    check(run(engine, [request()])[1], expected)


def test_neighbours_and_repetition_change_nothing(folder: Path, expected: torch.Tensor) -> None:
    engine = make_engine(folder, max_num_batched_tokens=64)
    plain = greedy_requests([PROMPT[:40], PROMPT[:7]], 5, first_id=10)
    alone = output_tokens(run(engine, plain))
    deltas = run(engine, [plain[0], request(1), plain[1], request(2), request(3, PROMPT[:1]), request(4, PROMPT[:2])])
    for request_id, length in ((1, 300), (2, 300), (4, 2)):
        check(deltas[request_id], expected, length)
    assert deltas[3][0].prompt_logprobs == [None]
    assert output_tokens({key: of for key, of in deltas.items() if key >= 10}) == alone


def test_a_preempted_prompt_keeps_what_it_had(folder: Path, expected: torch.Tensor) -> None:
    """A growing request takes the memory of one whose prompt is computed in small chunks."""
    tokens_that_fit = 330
    engine = make_engine(
        folder,
        layers_per_unit=3,
        block_size=4,
        max_num_batched_tokens=8,
        cache_memory_bytes=tokens_that_fit * 2 * 3 * 32 * 4,
    )
    growing = greedy_requests([PROMPT[100:104]], 120, first_id=5)
    deltas = run(engine, [*growing, request()])
    assert engine.stats().num_preemptions > 0
    check(deltas[1], expected)
