"""vLLM with our memory tiers: tokens are those of vLLM without, whatever was dropped, damaged or brought back.

Needs vLLM: make test-vllm.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import vllm_engine.engine_process as process
from fakes.random_steering import RandomSteering
from schedcore.api.config import EngineConfig
from schedcore.api.types import EngineRequest, FinishReason, RequestClass, SamplingParams
from vllm_engine.engine import VllmEngine

MODEL = Path(__file__).resolve().parents[3] / "worker/demo_model"
GATEWAY = b"test"
NUM_BLOCKS = 33  # of the device: a thousand tokens


def make(**options: Any) -> VllmEngine:
    config = EngineConfig(
        model=str(MODEL),
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=16,
        max_num_batched_tokens=256,
        cache_memory_bytes=1 << 28,
        block_size=32,
        restore="always",
        vllm_options=(f"num_gpu_blocks_override={NUM_BLOCKS}",),
        **options,
    )
    return process.build_engine(config, time.monotonic())[0]


def request(number: int, prompt: list[int], max_tokens: int = 8, **fields: Any) -> EngineRequest:
    sampling = SamplingParams(temperature=0.0) if number % 2 else SamplingParams(temperature=1.0, seed=number)
    return EngineRequest(number, prompt, max_tokens, sampling, **fields)


def serve(engine: VllmEngine, wanted: list[EngineRequest], at_once: int = 8) -> dict[int, list[int]]:
    """Each one's tokens."""
    tokens: dict[int, list[int]] = {each.request_id: [] for each in wanted}
    upcoming, num_open = list(reversed(wanted)), 0
    while upcoming or num_open:
        while upcoming and num_open < at_once:
            engine.add(GATEWAY, upcoming.pop())
            num_open += 1
        engine.step()
        for delta in engine.take_deltas().get(GATEWAY, []):
            assert delta.error is None
            tokens[delta.request_id] += delta.token_ids
            num_open -= delta.finish_reason is not FinishReason.NONE
    rest(engine)
    return tokens


def rest(engine: VllmEngine) -> None:
    while engine.step():
        pass
    engine.check_invariants()


def prompts(num: int, seed: int, num_tokens: int = 200) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(10, 1000) for _ in range(num_tokens)] for _ in range(num)]


def conversations(seed: int, num: int = 12, num_turns: int = 3) -> list[EngineRequest]:
    """Each turn begins with the one before, and others come in between: more than the device holds."""
    draw, texts, made = random.Random(seed), prompts(num, seed, 70), []
    for turn in range(num_turns):
        for i in draw.sample(range(num), num):
            texts[i] = [*texts[i], *(draw.randrange(10, 1000) for _ in range(draw.randint(1, 90) * turn))]
            offline = RequestClass.OFFLINE if i % 3 == 0 else RequestClass.ONLINE
            made.append(request(turn * num + i, texts[i], draw.randint(1, 20), request_class=offline))
    return made


@pytest.fixture(scope="module")
def expected() -> Iterator[dict[int, list[int]]]:
    engine = make()
    try:
        yield serve(engine, conversations(1))
    finally:
        engine.close()


def test_what_the_device_drops_comes_back_from_the_host(expected: dict[int, list[int]]) -> None:
    engine = make(host_cache_bytes=64 << 20)
    try:
        assert serve(engine, conversations(1)) == expected
        stats = engine.stats()
        assert stats.num_restores > 5
        assert stats.num_hit_tokens[1] > 32 * stats.num_restores // 2
        assert stats.num_saved_blocks > NUM_BLOCKS
        assert serve(engine, conversations(1)) == expected, "and once more, when all of it is there"
    finally:
        engine.close()


def test_random_steering_with_tiers_changes_no_token(expected: dict[int, list[int]]) -> None:
    engine = make(host_cache_bytes=64 << 20)
    try:
        for seed in range(3):
            steering = RandomSteering(seed)
            engine._core.scheduler.steer(steering)
            engine._steering = steering
            assert serve(engine, conversations(1)) == expected
            assert steering.num_preempted > 3
        assert engine._core.scheduler.planner.counters.num_loaded_blocks > 50
    finally:
        engine.close()


def test_a_host_that_is_too_small_for_all(expected: dict[int, list[int]]) -> None:
    probe = make(host_cache_bytes=64 << 20)
    block_bytes = probe.stats().block_bytes
    probe.close()
    engine = make(host_cache_bytes=9 * block_bytes)
    try:
        assert engine.stats().num_host_blocks == 9
        assert serve(engine, conversations(1)) == expected
    finally:
        engine.close()


def test_what_was_computed_is_there_after_a_restart(expected: dict[int, list[int]], tmp_path: Path) -> None:
    options = {"host_cache_bytes": 64 << 20, "disk_cache_dir": str(tmp_path / "disk")}
    engine = make(**options)
    try:
        assert serve(engine, conversations(1)) == expected
        assert engine.stats().num_stored_blocks == engine.stats().num_saved_blocks
    finally:
        engine.close()
    engine = make(**options)
    try:
        assert serve(engine, conversations(1)) == expected
        stats = engine.stats()
        assert stats.num_fetched_blocks > 20
        assert stats.num_lost_blocks == 0
        assert stats.num_hit_tokens[2] > 500
    finally:
        engine.close()
    for path in (tmp_path / "disk").glob("segment-*"):  # every record is damaged somewhere behind its head
        content = bytearray(path.read_bytes())
        for i in range(100, len(content), 1000):
            content[i] ^= 0xFF
        path.write_bytes(content)
    engine = make(**options)
    try:
        assert serve(engine, conversations(1)) == expected
        assert engine.stats().num_lost_blocks > 0
        assert engine.stats().num_hit_tokens[2] == 0
    finally:
        engine.close()


def test_blocks_of_another_salt_are_not_found() -> None:
    engine = make(host_cache_bytes=64 << 20)
    try:
        (text,) = prompts(1, 7)
        serve(engine, [request(1, text, cache_salt="a")])
        serve(engine, [request(i, other) for i, other in enumerate(prompts(12, 8), 2)])
        before = engine.stats().num_hit_tokens
        serve(engine, [request(30, text, cache_salt="b")])
        assert engine.stats().num_hit_tokens == before
        serve(engine, [request(31, text, cache_salt="a")])
        assert engine.stats().num_hit_tokens[1] == before[1] + 192
    finally:
        engine.close()


def test_an_abort_while_blocks_come_from_the_disk(tmp_path: Path) -> None:
    options = {"host_cache_bytes": 64 << 20, "disk_cache_dir": str(tmp_path)}
    (text,) = prompts(1, 9)
    engine = make(**options)
    serve(engine, [request(1, text)])
    engine.close()
    engine = make(**options)
    try:
        engine.add(GATEWAY, request(2, text))
        engine.step()
        engine.abort(GATEWAY, 2)
        rest(engine)
        (delta,) = engine.take_deltas()[GATEWAY]
        assert delta.finish_reason is FinishReason.ABORT
        assert engine.stats().num_fetched_blocks == 6
    finally:
        engine.close()
