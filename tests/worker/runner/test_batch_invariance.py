"""Equal seeds give equal tokens whatever else runs: a crowd of requests against each of them alone, bit for bit.

The crowd is chunked, preempted, served from the prefix cache, and has neighbours that come and are aborted. Tokens,
log-probabilities, ranks and alternatives are compared with ==. HOCKET_TEST_INVARIANCE_REQUESTS: how many of each kind,
seeded and greedy (make test-invariance: 192).
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from fakes.engine_driver import GATEWAY, collect, make_engine, run
from fakes.tiny_checkpoints import FAMILIES, write_checkpoint
from schedcore.api.types import EngineRequest, FinishReason, SamplingParams, TokenDelta
from worker.process.engine import Engine

NUM_REQUESTS = int(os.environ.get("HOCKET_TEST_INVARIANCE_REQUESTS", "32"))
NUM_FAMILY_REQUESTS = 8
NUM_TOGETHER = 64
MIN_NEIGHBOURS = 5
DEMO_MODEL = Path(__file__).parents[3] / "worker" / "demo_model"
CROWD: dict[str, Any] = {
    "max_num_seqs": NUM_TOGETHER,
    "max_num_batched_tokens": 200,
    "block_size": 8,
    "max_ttft_ms": 0,  # nobody is refused
}
DTYPES = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int8 cache": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
    "int8-weights": {"dtype": "bfloat16", "quantization": "int8-weights"},
}

Outcome = tuple[list[int], list[Any], Any]  # tokens, their log-probabilities, the prompt's


def make_requests(num_of_each: int, vocab_size: int, seed: int) -> list[EngineRequest]:
    """Half of them seeded, half greedy; some prompts begin alike."""
    rng = random.Random(seed)
    beginnings = [[rng.randrange(6, vocab_size) for _ in range(40)] for _ in range(3)]
    requests = []
    for i in range(2 * num_of_each):
        prompt = [rng.randrange(6, vocab_size) for _ in range(rng.choice([1, 5, 30, 90, 150]))]
        if rng.random() < 0.4:
            prompt = rng.choice(beginnings) + prompt
        filters = rng.choice([{}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.02, "presence_penalty": 0.3}])
        sampling = SamplingParams(
            temperature=0.0 if i % 2 else rng.choice([0.7, 1.0]),
            seed=None if i % 2 else rng.randrange(2**40),
            num_logprobs=3,
            num_prompt_logprobs=0 if i % 16 == 0 else None,
            **(filters if i % 2 == 0 else {}),
        )
        requests.append(EngineRequest(i + 1, prompt, rng.choice([8, 24, 60]), sampling))
    return requests


def outcome(deltas: list[TokenDelta]) -> Outcome:
    tokens = [token for delta in deltas for token in delta.token_ids]
    logprobs = [entry for delta in deltas for entry in delta.logprobs or []]
    assert len(logprobs) == len(tokens) > 0
    return tokens, logprobs, deltas[0].prompt_logprobs


def outcomes_alone(engine: Engine, requests: list[EngineRequest]) -> dict[int, Outcome]:
    return {request.request_id: outcome(run(engine, [request])[request.request_id]) for request in requests}


def outcomes_in_a_crowd(engine: Engine, requests: list[EngineRequest], seed: int) -> dict[int, Outcome]:
    """All in random order, a few new ones every step, and now and then a neighbour that is aborted later."""
    rng = random.Random(seed)
    waiting = rng.sample(requests, len(requests))
    neighbours: list[int] = []
    deltas: dict[int, list[TokenDelta]] = defaultdict(list)
    num_neighbours = 0
    while waiting or engine.has_work() or num_neighbours < MIN_NEIGHBOURS:
        for _ in range(min(len(waiting), rng.choice([0, 1, 8]))):
            engine.add(GATEWAY, waiting.pop())
        if num_neighbours < MIN_NEIGHBOURS or (waiting and rng.random() < 0.5):
            num_neighbours += 1
            prompt = rng.choice(requests).prompt_token_ids[: rng.randrange(1, 100)]
            engine.add(GATEWAY, EngineRequest(10**6 + num_neighbours, prompt, 100))
            neighbours.append(10**6 + num_neighbours)
        if neighbours and (not waiting or rng.random() < 0.4):
            engine.abort(GATEWAY, neighbours.pop(rng.randrange(len(neighbours))))
        if engine.has_work():
            assert engine.step(), "the core has work but schedules nothing"
        collect(engine, deltas)
    engine.check_invariants()
    ended = {i: of_request for i, of_request in deltas.items() if i < 10**6}
    assert all(of_request[-1].finish_reason != FinishReason.ERROR for of_request in ended.values())
    return {i: outcome(of_request) for i, of_request in ended.items()}


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_demo_model_in_a_crowd(dtype: str, num_threads: int) -> None:
    requests = make_requests(NUM_REQUESTS, 1024, seed=num_threads)
    alone = outcomes_alone(make_engine(DEMO_MODEL, **DTYPES[dtype], enable_prefix_caching=False), requests)
    pool = {"float32": 3 << 20, "int8 cache": 3 << 18}.get(dtype, 3 << 19)
    crowded = make_engine(DEMO_MODEL, **DTYPES[dtype], **CROWD, cache_memory_bytes=pool, num_threads=num_threads)
    together = outcomes_in_a_crowd(crowded, requests, seed=7)
    assert crowded.stats().num_preemptions > 0
    different = [i for i in sorted(alone) if together[i] != alone[i]]
    assert different == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_in_a_crowd(family: str, dtype: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, family)
    requests = make_requests(NUM_FAMILY_REQUESTS, 211, seed=3)
    limit = 128 if family == "llama-linear-rope" else 256
    requests = [r for r in requests if len(r.prompt_token_ids) + r.max_tokens <= limit]
    settings = {**DTYPES[dtype], "max_model_len": limit}
    alone = outcomes_alone(make_engine(folder, **settings, enable_prefix_caching=False), requests)
    together = outcomes_in_a_crowd(make_engine(folder, **settings, **CROWD), requests, seed=8)
    assert [i for i in sorted(alone) if together[i] != alone[i]] == []
