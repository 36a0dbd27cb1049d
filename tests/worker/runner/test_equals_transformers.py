"""Greedy decoding in float32 equals Hugging Face `generate`, token for token, whatever happens around a request."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakes.engine_driver import greedy_requests, make_engine, output_tokens, run
from fakes.tiny_checkpoints import FAMILIES, VOCAB_SIZE, greedy, write_checkpoint
from schedcore.api.types import EngineRequest

NUM_TOKENS = 20
PROMPT_LENGTHS = (1, 2, 15, 16, 17, 33, 64, 129, 300)
ELEMENTS_PER_TOKEN = 2 * 3  # K and V of three layers, in units of d_kv


@dataclass(frozen=True)
class Case:
    folder: Path
    prompts: list[list[int]]
    expected: list[list[int]]
    kv_size: int

    def cache_bytes(self, num_tokens: int) -> int:
        return num_tokens * ELEMENTS_PER_TOKEN * self.kv_size * 4

    def requests(self) -> list[EngineRequest]:
        return greedy_requests(self.prompts, NUM_TOKENS)


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family: str = request.param
    folder = write_checkpoint(tmp_path_factory.mktemp(family), family)
    rng = random.Random(family)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in PROMPT_LENGTHS]
    parameters = FAMILIES[family][1]
    kv_size = parameters.get("num_key_value_heads", 4) * parameters.get("head_dim", 16)
    expected = greedy(folder, prompts, NUM_TOKENS)
    assert len({token for tokens in expected for token in tokens}) > 20, "a degenerate oracle would prove nothing"
    return Case(folder, prompts, expected, kv_size)


def test_alone(case: Case) -> None:
    engine = make_engine(case.folder, layers_per_unit=3)
    outputs = [output_tokens(run(engine, [request]))[0] for request in case.requests()]
    assert outputs == case.expected


def test_batched_with_others(case: Case) -> None:
    engine = make_engine(case.folder, layers_per_unit=2)
    assert output_tokens(run(engine, case.requests())) == case.expected


def test_chunked(case: Case) -> None:
    engine = make_engine(case.folder, max_num_batched_tokens=23, block_size=8)
    assert output_tokens(run(engine, case.requests())) == case.expected


def test_chunked_and_alone(case: Case) -> None:
    """Most steps sample nothing."""
    engine = make_engine(case.folder, max_num_batched_tokens=23, block_size=8)
    assert output_tokens(run(engine, case.requests()[-1:])) == case.expected[-1:]


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
@pytest.mark.parametrize(("policy", "least"), [("fcfs", 2), ("hocket", 1)])
def test_after_preemption_and_resume(case: Case, policy: str, least: int, enable_prefix_caching: bool) -> None:
    """Room for the longest request, which comes first, and a little more: the others give way as all grow."""
    engine = make_engine(
        case.folder,
        policy=policy,
        layers_per_unit=3,
        block_size=4,
        cache_memory_bytes=case.cache_bytes(max(PROMPT_LENGTHS) + NUM_TOKENS + 48),
        enable_prefix_caching=enable_prefix_caching,
    )
    longest_first = sorted(case.requests(), key=lambda request: len(request.prompt_token_ids) != max(PROMPT_LENGTHS))
    assert output_tokens(run(engine, longest_first)) == case.expected
    assert engine.stats().num_preemptions >= least


def test_on_a_prefix_cache_hit(case: Case) -> None:
    engine = make_engine(case.folder, layers_per_unit=3)
    run(engine, case.requests())
    deltas = run(engine, case.requests())
    assert output_tokens(deltas) == case.expected
    cached = [of_request[0].num_cached_tokens for _, of_request in sorted(deltas.items())]
    assert cached == [(length - 1) // 16 * 16 for length in PROMPT_LENGTHS]


@pytest.mark.gpu
def test_on_a_cuda_device(case: Case) -> None:
    engine = make_engine(case.folder, device="cuda", max_num_batched_tokens=64)
    assert output_tokens(run(engine, case.requests())) == case.expected
