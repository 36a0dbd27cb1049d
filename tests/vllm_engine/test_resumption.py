"""What another engine began, vLLM ends as it would have: every cut gives the whole. Needs vLLM: make test-vllm."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("vllm")

import vllm_engine.engine_process as process
from schedcore.api.config import EngineConfig
from schedcore.api.types import (
    RESUMPTION,
    EngineRequest,
    ErrorCode,
    FinishReason,
    Grammar,
    GrammarKind,
    SamplingParams,
    TokenDelta,
)

MODEL = Path(__file__).resolve().parents[2] / "worker/demo_model"
GATEWAY = b"test"
NUM_TOKENS, END = 40, 5
# Fields of the request, and of its sampling.
FEATURES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({}, {"temperature": 0.0, "num_logprobs": 2}),
    "seeded": ({}, {"seed": 1}),
    "few": ({}, {"seed": 2, "temperature": 0.8, "top_p": 0.9, "top_k": 50, "min_p": 0.01}),
    "repetition": ({}, {"temperature": 0.0, "repetition_penalty": 1.3}),
    "presence": ({}, {"temperature": 0.0, "presence_penalty": 1.5, "frequency_penalty": 0.7}),
    "frequency": ({}, {"seed": 3, "frequency_penalty": 1.1}),
    "end": ({"min_tokens": 30, "stop_token_ids": list(range(100, 600))}, {"seed": 4}),
    "bias": ({}, {"seed": 5, "logit_bias": {30: -100.0, 31: 3.0}}),
    "grammar": (
        {"grammar": Grammar(GrammarKind.REGEX, "([a-z]{3,5} ){6}[0-9]{4}"), "stop_token_ids": [END]},
        {"seed": 6},
    ),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    config = EngineConfig(
        model=str(MODEL),
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=32,
        max_num_batched_tokens=64,  # prompts are computed in chunks
        cache_memory_bytes=1 << 27,
        block_size=32,
    )
    made, info = process.build_engine(config, time.monotonic())
    assert RESUMPTION not in info.missing
    yield made
    made.close()


def run(engine: Any, requests: list[EngineRequest]) -> dict[int, list[TokenDelta]]:
    for request in requests:
        engine.add(GATEWAY, request)
    deltas: dict[int, list[TokenDelta]] = {request.request_id: [] for request in requests}
    num_ended = 0
    while num_ended < len(requests):
        for delta in engine.take_deltas().get(GATEWAY, []):
            deltas[delta.request_id].append(delta)
            num_ended += delta.finish_reason is not FinishReason.NONE
        engine.step()
    engine.check_invariants()
    return deltas


def whole(feature: str) -> EngineRequest:
    fields, sampling = FEATURES[feature]
    prompt = random.Random(feature).choices(range(10, 1000), k=90)
    return EngineRequest(0, prompt, NUM_TOKENS, SamplingParams(**sampling), **fields)


def rest(request: EngineRequest, request_id: int, tokens: list[int]) -> EngineRequest:
    return msgspec.structs.replace(
        request,
        request_id=request_id,
        prompt_token_ids=[*request.prompt_token_ids, *tokens],
        max_tokens=request.max_tokens - len(tokens),
        num_prior_tokens=len(tokens),
    )


def tokens_of(deltas: list[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


@pytest.mark.parametrize("is_cached", [False, True], ids=["nothing cached", "all cached"])
@pytest.mark.parametrize("feature", FEATURES)
def test_every_cut_gives_the_whole(engine: Any, feature: str, is_cached: bool) -> None:
    request = whole(feature)
    deltas = run(engine, [request])[0]
    tokens = tokens_of(deltas)
    assert len(tokens) > 10
    if not is_cached:
        assert engine._core.scheduler.reset_prefix_cache()
    for k, of_rest in run(engine, [rest(request, k, tokens[:k]) for k in range(1, len(tokens), 3)]).items():
        assert tokens_of(of_rest) == tokens[k:], f"cut after {k}"
        assert of_rest[-1].finish_reason is deltas[-1].finish_reason
        logprobs = [entry for delta in of_rest for entry in delta.logprobs or ()]
        expected = [entry for delta in deltas for entry in delta.logprobs or ()][k:]
        assert [entry.logprob for entry in logprobs] == pytest.approx([e.logprob for e in expected], abs=1e-4)


def test_a_rest_that_is_cut_again_gives_the_whole(engine: Any) -> None:
    request = whole("frequency")
    tokens = tokens_of(run(engine, [request])[0])
    for k in (5, 6, 17):
        assert tokens_of(run(engine, [rest(request, 1, tokens[:k])])[1]) == tokens[k:]


def test_tokens_that_the_grammar_forbids_end_the_request_alone(engine: Any) -> None:
    request = whole("grammar")
    tokens = tokens_of(run(engine, [request])[0])
    deltas = run(engine, [rest(request, 1, [600, 601, 602]), rest(request, 2, tokens[:4])])
    assert deltas[1][-1].finish_reason is FinishReason.ERROR
    assert deltas[1][-1].error is not None
    assert deltas[1][-1].error.code in (ErrorCode.INTERNAL, ErrorCode.INVALID)
    assert tokens_of(deltas[2]) == tokens[4:]
