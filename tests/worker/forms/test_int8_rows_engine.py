"""The real scheduler keeps requests in int8 beside others in K and V, the real model runner carries it out."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.engine_driver import PlanWatch, greedy_requests, make_engine, output_tokens, run
from fakes.guessing_engines import DEMO_MODEL, cheap_profile, guessing, repetitive_prompts
from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint
from schedcore._core import BatchPlan, CacheKind
from schedcore.api.types import EngineRequest
from schedcore.record.replay import replay
from worker.process.engine import Engine

NUM_OUTPUT, MAX_LEN, SHARED = 24, 128, 40
LENGTHS = (7, 90, 33, 16, 61, 2, 100, 48, 17, 75, 90, 5)
FAMILIES = ["llama", "qwen3", "mistral"]  # grouped heads: hidden states gain nothing
ALL = {"policy": "fcfs", "cache_kinds": "int8"}  # every request
ON_DISK = 2  # of EngineStats.num_hit_tokens
NUM_TO_INT8 = 3  # of Conversion in scheduler_stats.h


class Watch(PlanWatch):
    """Notes who was kept how."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.in_int8: set[int] = set()  # requests
        self.most_tokens = 0  # with cache, in one step
        self.num_mixed = 0  # steps with both kinds
        self.num_rounded = 0  # blocks

    def note(self, plan: BatchPlan) -> None:
        kinds = plan.cache_kinds if len(plan.cache_kinds) else np.zeros(plan.num_seqs, np.int32)
        is_int8 = kinds == CacheKind.INT8
        self.in_int8 |= set(plan.request_ids[is_int8].tolist())
        self.num_mixed += bool(is_int8.any() and not is_int8.all())
        self.num_rounded += len(plan.roundings)
        self.most_tokens = max(self.most_tokens, int(plan.seq_lens.sum()))


@dataclass(frozen=True)
class Case:
    folder: Path
    requests: list[EngineRequest]
    expected: list[list[int]]  # with all of K and V


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    rng = random.Random(request.param)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]
    prompts[-2][:SHARED] = prompts[1][:SHARED]
    requests = greedy_requests(prompts, NUM_OUTPUT)
    return Case(folder, requests, output_tokens(run(make_engine(folder), requests)))


def small_engine(folder: Path, num_blocks: int, **settings: Any) -> tuple[Engine, Watch]:
    """A cache of so many blocks of 4 tokens as K and V."""
    fixed = {"max_model_len": MAX_LEN, "block_size": 4, "layers_per_unit": 3, "max_num_batched_tokens": 64}
    kinds = settings.get("cache_kinds", "kv")
    large = make_engine(
        folder, cache_memory_bytes=1 << 20, policy=settings.get("policy", "hocket"), cache_kinds=kinds, **fixed
    )
    block_bytes = (1 << 20) // (large.stats().num_units // 2)
    engine = make_engine(folder, cache_memory_bytes=num_blocks * block_bytes, **{**fixed, **settings})
    return engine, Watch(engine)


@pytest.mark.parametrize(("dtype", "of_cache"), [("float32", "auto"), ("float32", "bfloat16"), ("float16", "auto")])
def test_all_in_int8_is_what_a_cache_in_int8_says(case: Case, dtype: str, of_cache: str) -> None:
    whole = make_engine(case.folder, dtype=dtype, policy="fcfs", kv_cache_dtype="int8")
    expected = output_tokens(run(whole, case.requests))
    engine = make_engine(case.folder, dtype=dtype, kv_cache_dtype=of_cache, **ALL)
    watch = Watch(engine)
    assert output_tokens(run(engine, case.requests)) == expected
    assert len(watch.in_int8) == len(case.requests)
    assert watch.num_rounded == 0


def test_all_in_int8_take_half(case: Case) -> None:
    most = {}
    for kinds in ("kv", "int8"):
        engine, watch = small_engine(case.folder, 60, policy="fcfs", cache_kinds=kinds, enable_prefix_caching=False)
        run(engine, case.requests)
        most[kinds] = watch.most_tokens
    assert most["int8"] > 1.7 * most["kv"]


def test_where_memory_suffices_nobody_is_rounded(case: Case) -> None:
    engine = make_engine(case.folder, cache_kinds="int8")
    watch = Watch(engine)
    assert output_tokens(run(engine, case.requests)) == case.expected
    assert watch.in_int8 == set()


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
@pytest.mark.parametrize("policy", ["apt", "hocket"])
def test_where_memory_is_short_some_are_and_others_answer_as_ever(
    case: Case, policy: str, enable_prefix_caching: bool
) -> None:
    settings = {"policy": policy, "enable_prefix_caching": enable_prefix_caching, "max_ttft_ms": 0}
    engine, watch = small_engine(case.folder, 160, cache_kinds="int8", **settings)
    tokens = output_tokens(run(engine, case.requests))
    assert [len(of_request) for of_request in tokens] == [NUM_OUTPUT] * len(case.requests)
    assert 0 < len(watch.in_int8) < len(case.requests)
    assert watch.num_mixed > 0
    assert watch.num_rounded > 0  # where they ran
    for request, found, expected in zip(case.requests, tokens, case.expected, strict=True):
        if request.request_id not in watch.in_int8:
            assert found == expected


def test_fewer_lose_their_memory(case: Case) -> None:
    num_preemptions = {}
    for kinds in ("kv", "int8"):
        engine, _ = small_engine(case.folder, 40, cache_kinds=kinds, max_ttft_ms=0)
        for _ in range(3):
            run(engine, case.requests)
        num_preemptions[kinds] = engine.stats().num_preemptions
    assert num_preemptions["int8"] < num_preemptions["kv"]
    assert engine.stats().num_conversions[NUM_TO_INT8] > 0


def test_who_comes_in_in_int8_uses_what_is_cached_in_k_and_v(case: Case) -> None:
    engine, watch = small_engine(case.folder, 40, cache_kinds="int8", max_ttft_ms=0)
    first, like_it, long = (case.requests[i] for i in (1, 10, 6))
    assert output_tokens(run(engine, [first])) == [case.expected[1]]  # stays cached
    assert watch.in_int8 == set()
    deltas = run(engine, [like_it, long])
    assert len(watch.in_int8) == 2
    assert watch.num_rounded >= SHARED // 4
    assert deltas[like_it.request_id][0].num_cached_tokens == SHARED
    assert output_tokens({0: deltas[like_it.request_id]})[0][:1] == case.expected[10][:1]


@pytest.mark.parametrize("host_cache_bytes", [0, 1 << 20])
def test_decisions_replay(case: Case, tmp_path: Path, host_cache_bytes: int) -> None:
    record = tmp_path / "decisions"
    engine, watch = small_engine(
        case.folder, 45, cache_kinds="int8", max_ttft_ms=0, decision_record=str(record),
        host_cache_bytes=host_cache_bytes,
    )  # fmt: skip
    for _ in range(2):
        run(engine, case.requests)
    assert watch.in_int8
    engine.close()
    engine._core.close()  # type: ignore[attr-defined]
    result = replay(record)
    assert (result.is_identical, result.difference) == (True, None)


def test_guesses_are_verified_in_int8_too(tmp_path: Path) -> None:
    profile = cheap_profile(tmp_path)
    requests = greedy_requests(repetitive_prompts(8, 3), 40)
    plain = output_tokens(run(make_engine(DEMO_MODEL, **ALL), requests))
    engine = guessing(profile, **ALL)
    watch = Watch(engine)
    assert output_tokens(run(engine, requests)) == plain
    assert len(watch.in_int8) == len(requests)
    assert engine.stats().num_right_guesses > 0


def test_blocks_of_other_units_are_another_cache(case: Case, tmp_path: Path) -> None:
    """Units are larger where some may be in int8: what a disk holds of one cache is not the other's."""
    settings = {"disk_cache_dir": str(tmp_path), "disk_cache_bytes": 64 << 20, "host_cache_bytes": 1 << 20}
    expected = output_tokens(run(make_engine(case.folder, dtype="bfloat16"), case.requests))
    from_disk = []
    for kinds in ("kv", "kv", "int8"):
        engine = make_engine(case.folder, dtype="bfloat16", cache_kinds=kinds, restore="always", **settings)
        tokens = output_tokens(run(engine, case.requests))
        from_disk.append(engine.stats().num_hit_tokens[ON_DISK])
        engine.close()
        assert tokens == expected
    assert from_disk[0] == from_disk[2] == 0
    assert from_disk[1] > 0
