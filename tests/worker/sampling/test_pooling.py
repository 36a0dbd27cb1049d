"""Vectors of prompts are those of Transformers: alone, in company, in chunks, after preemption, from a cache."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers

from fakes.engine_driver import GREEDY, greedy_requests, make_engine, output_tokens, run
from fakes.tiny_checkpoints import VOCAB_SIZE, make_model, write_checkpoint
from schedcore.api.types import EngineRequest, FinishReason, Pooling, PoolingKind, TokenDelta

RNG = random.Random(11)
PROMPTS = [[RNG.randrange(VOCAB_SIZE) for _ in range(length)] for length in (40, 1, 17, 25, 9)]
BYTES_PER_TOKEN = 2 * 3 * 32 * 4  # K and V of three layers, d_kv 32, float32
Vector = npt.NDArray[np.float32]


@pytest.fixture(scope="module", params=["llama", "qwen3", "opt-norm-last"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"))


def expected(folder: Path, prompts: list[list[int]], pooling: PoolingKind) -> list[Vector]:
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for prompt in prompts:
        with torch.inference_mode():
            states = model(torch.tensor([prompt])).last_hidden_state[0]
        picked = {PoolingKind.LAST: states[-1], PoolingKind.MEAN: states.mean(0), PoolingKind.CLS: states[0]}
        found.append(picked[pooling].numpy())
    return found


def asking(prompts: list[list[int]], kind: PoolingKind, first_id: int = 1) -> list[EngineRequest]:
    return [EngineRequest(i, prompt, 1, GREEDY, pooling=Pooling(kind)) for i, prompt in enumerate(prompts, first_id)]


def vector(deltas: list[TokenDelta]) -> Vector:
    assert len(deltas) == 1
    assert deltas[0].finish_reason is FinishReason.LENGTH
    assert deltas[0].vector is not None
    return np.frombuffer(deltas[0].vector, "<f4")


def check(deltas: dict[int, list[TokenDelta]], wanted: list[Vector], first_id: int = 1) -> None:
    for i, right in enumerate(wanted, first_id):
        np.testing.assert_allclose(vector(deltas[i]), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pooling", PoolingKind)
def test_alone_together_and_in_chunks(folder: Path, pooling: PoolingKind) -> None:
    wanted = expected(folder, PROMPTS, pooling)
    requests = asking(PROMPTS, pooling)
    engine = make_engine(folder)
    for request, right in zip(requests, wanted, strict=True):
        check(run(engine, [request]), [right], request.request_id)
    check(run(make_engine(folder), requests), wanted)
    check(run(make_engine(folder, max_num_batched_tokens=8, block_size=4), requests), wanted)


@pytest.mark.parametrize("pooling", PoolingKind)
def test_beside_requests_that_generate(llama: Path, pooling: PoolingKind) -> None:
    others = greedy_requests(PROMPTS, 12, first_id=100)
    alone = output_tokens(run(make_engine(llama), others))
    deltas = run(make_engine(llama, max_num_batched_tokens=16), [*others, *asking(PROMPTS, pooling)])
    check(deltas, expected(llama, PROMPTS, pooling))
    assert output_tokens({i: of for i, of in deltas.items() if i >= 100}) == alone


@pytest.mark.parametrize("pooling", PoolingKind)
def test_a_cached_prefix_serves_who_may_use_it(llama: Path, pooling: PoolingKind) -> None:
    engine = make_engine(llama, block_size=4)
    run(engine, greedy_requests([PROMPTS[0]], 4))
    deltas = run(engine, asking([PROMPTS[0]] * 2, pooling))
    check(deltas, expected(llama, [PROMPTS[0]] * 2, pooling))
    assert (deltas[1][0].num_cached_tokens > 0) == (pooling is PoolingKind.LAST)


@pytest.mark.parametrize("pooling", PoolingKind)
def test_after_preemption(llama: Path, pooling: PoolingKind) -> None:
    engine = make_engine(
        llama, layers_per_unit=3, block_size=4, cache_memory_bytes=84 * BYTES_PER_TOKEN, max_num_batched_tokens=12
    )
    others = greedy_requests([prompt[:20] for prompt in PROMPTS], 40, first_id=100)
    for i, request in enumerate(others):  # decodes grow and drive out what came last
        engine.add(b"gateway", request)
        if i == 2:
            engine.step()
    deltas = run(engine, asking(PROMPTS, pooling))
    check({i: of for i, of in deltas.items() if i < 100}, expected(llama, PROMPTS, pooling))
    assert engine.stats().num_preemptions > 0


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_checkpoint_without_a_head(tmp_path: Path, family: str) -> None:
    make_model(family).model.save_pretrained(tmp_path)
    assert "ForCausalLM" not in (tmp_path / "config.json").read_text()
    check(run(make_engine(tmp_path), asking(PROMPTS, PoolingKind.MEAN)), expected(tmp_path, PROMPTS, PoolingKind.MEAN))


def test_states_that_are_not_finite_end_their_request_only(llama: Path) -> None:
    engine = make_engine(llama, max_num_batched_tokens=8)
    executor = engine._executor
    bad = np.float32("nan")
    pools = executor._runner._pools if hasattr(executor, "_runner") else executor._pools  # type: ignore[attr-defined]
    collect = pools.collect
    pools.collect = lambda span, hidden: collect(span, hidden * (bad if span.request_id == 1 else 1))
    deltas = run(engine, asking(PROMPTS[2:4], PoolingKind.MEAN))
    assert deltas[1][-1].finish_reason is FinishReason.ERROR
    check({2: deltas[2]}, expected(llama, [PROMPTS[3]], PoolingKind.MEAN), 2)


def test_a_request_that_wants_both_is_refused(llama: Path) -> None:
    engine = make_engine(llama)
    deltas = run(engine, [EngineRequest(1, [1], 2, GREEDY, pooling=Pooling(PoolingKind.LAST))])
    assert deltas[1][0].finish_reason is FinishReason.ERROR


@pytest.mark.parametrize("num_dimensions", [None, 5])
def test_length_and_dimensions(llama: Path, num_dimensions: int | None) -> None:
    pooling = Pooling(PoolingKind.LAST, is_normalized=True, num_dimensions=num_dimensions)
    deltas = run(make_engine(llama), [EngineRequest(1, PROMPTS[0], 1, GREEDY, pooling=pooling)])
    right = expected(llama, [PROMPTS[0]], PoolingKind.LAST)[0][:num_dimensions]
    np.testing.assert_allclose(vector(deltas[1]), right / np.linalg.norm(right), rtol=1e-4, atol=1e-5)
