"""The real executor under the real core: seeds, dtypes, and companions of every kind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fakes.engine_driver import greedy_requests, make_engine, output_tokens, run
from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint
from schedcore.api.types import EngineRequest, SamplingParams

NUM_TOKENS = 24
RNG = random.Random(5)
PROMPTS = [[RNG.randrange(VOCAB_SIZE) for _ in range(length)] for length in (40, 3, 17, 25, 9)]
BYTES_PER_TOKEN = 2 * 3 * 32 * 4  # K and V of three layers, d_kv 32, float32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"))


def seeded_requests() -> list[EngineRequest]:
    kinds = [
        SamplingParams(seed=1),
        SamplingParams(seed=2, temperature=0.7, top_p=0.9),
        SamplingParams(seed=3, top_k=8, repetition_penalty=1.2),
        SamplingParams(seed=-4, min_p=0.05, frequency_penalty=0.4),
        SamplingParams(temperature=0.0, presence_penalty=0.5, logit_bias={7: 2.0}),
    ]
    return [
        EngineRequest(i, prompt, NUM_TOKENS, kind) for i, (prompt, kind) in enumerate(zip(PROMPTS, kinds, strict=True))
    ]


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[list[int]]:
    return [output_tokens(run(make_engine(folder), [request]))[0] for request in seeded_requests()]


def test_seeded_requests_repeat_in_company(folder: Path, alone: list[list[int]]) -> None:
    others = [*greedy_requests(PROMPTS, 10, first_id=100), EngineRequest(200, PROMPTS[0], 15)]
    deltas = run(make_engine(folder, max_num_batched_tokens=16), [*others, *seeded_requests()])
    assert output_tokens({i: of_request for i, of_request in deltas.items() if i < 100}) == alone


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_seeded_requests_repeat_after_preemption(
    folder: Path, alone: list[list[int]], enable_prefix_caching: bool
) -> None:
    engine = make_engine(
        folder,
        layers_per_unit=3,
        block_size=4,
        cache_memory_bytes=100 * BYTES_PER_TOKEN,
        enable_prefix_caching=enable_prefix_caching,
    )
    assert output_tokens(run(engine, seeded_requests())) == alone
    assert engine.stats().num_preemptions >= 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_reduced_precision_gives_nearly_the_same_distribution(folder: Path, dtype: str) -> None:
    request = EngineRequest(1, PROMPTS[0], 1, SamplingParams(temperature=0.0, num_logprobs=0, num_prompt_logprobs=0))
    exact, reduced = (run(make_engine(folder, dtype=d), [request])[1][0].prompt_logprobs for d in ("float32", dtype))
    assert exact is not None
    assert reduced is not None
    differences = [abs(a.logprob - b.logprob) for a, b in zip(exact, reduced, strict=True) if a and b]
    assert 0 < sum(differences) / len(differences) < 0.2


def test_requests_without_a_seed_repeat_under_the_engine_seed(folder: Path) -> None:
    requests = [EngineRequest(1, PROMPTS[0], NUM_TOKENS), EngineRequest(2, PROMPTS[0], NUM_TOKENS)]
    first, again, other = (output_tokens(run(make_engine(folder, seed=seed), requests)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first[0] != first[1]
