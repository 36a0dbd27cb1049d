"""Everything on at once: both kinds of cache, uncached tokens, prefix cache, tiers, sessions, drafts, offline work.

The real scheduler decides in a pool that is too small, with a profile by which all of it pays; the tokens are those of
a large engine with nothing of it, and the record of the decisions replays.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakes.engine_driver import GATEWAY, GREEDY, collect, make_engine, output_tokens, run
from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint
from schedcore._core import RatioReason
from schedcore.api.types import Advisory, AdvisoryEvent, EngineRequest, EngineStats, RequestClass, TokenDelta
from schedcore.latency.latency_profile import (
    ErrorStatistics,
    LatencyCoefficients,
    LatencyProfile,
    save_profile,
)
from schedcore.record.recording_scheduler import RecordingScheduler
from schedcore.record.replay import replay
from worker.process.engine import Engine

MIN_HISTORIES, MAX_HISTORIES = 3, 9
NUM_OUTPUT, MAX_LEN, NUM_TOKENS = 14, 144, 470  # as K and V: the pool, with workspace and lanes
BYTES_PER_TOKEN = 2 * 3 * 64 * 4  # K and V of three layers, d_kv 64, float32
EVERYTHING = {
    "policy": "hocket",
    "cache_kinds": "auto",
    "partial_caching": True,
    "host_cache_bytes": 120 << 10,
    "restore": "always",
    "max_ttft_ms": 0,  # four times the pool wait: nobody is refused
    "block_size": 4,
    "layers_per_unit": 1,
    "max_num_batched_tokens": 96,
    "max_model_len": MAX_LEN,
    "cache_memory_bytes": NUM_TOKENS * BYTES_PER_TOKEN,
}
# Of a machine that reads its weights for 5 ms whatever it computes.
IDLE_COMPUTE = LatencyCoefficients(step_base=0.005, prefill_token=1e-8, decode_seq=1e-8, hidden_token=1e-9)


@dataclass(frozen=True)
class Case:
    folder: Path
    requests: list[EngineRequest]  # in order of arrival
    expected: list[list[int]]


@pytest.fixture(scope="module", params=["opt", "qwen3"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    rng = random.Random(request.param)
    plain = make_engine(folder, enable_prefix_caching=False, host_cache_bytes=0)
    ids = itertools.count(1)
    shared = tokens(rng, 24)

    def of(prompt: list[int], session: str = "", request_class: RequestClass = RequestClass.ONLINE) -> EngineRequest:
        return EngineRequest(next(ids), prompt, NUM_OUTPUT, GREEDY, session_id=session, request_class=request_class)

    requests = []
    history = {f"chat {i}": tokens(rng, 30) for i in range(4)}
    for turn in range(3):
        for session, prompt in history.items():
            prompt += tokens(rng, 8 + turn)
            requests.append(of(list(prompt), session))
            prompt += output_tokens(run(plain, requests[-1:]))[0]
            requests.append(of([*shared, *tokens(rng, rng.randrange(1, 40))], "", RequestClass.OFFLINE))
            requests.append(of(tokens(rng, rng.randrange(60, 110))))
    expected = output_tokens(run(plain, requests))
    plain.close()
    return Case(folder, requests, expected)


def tokens(rng: random.Random, num: int) -> list[int]:
    return [rng.randrange(VOCAB_SIZE) for _ in range(num)]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    error = ErrorStatistics(mean=0.0, median=0.0, p95=0.0, num_samples=1)
    save_profile(
        LatencyProfile(model="tiny", device="none", coefficients=IDLE_COMPUTE, error=error, host_bytes_per_second=50e6),
        path,
    )
    return path


def serve(engine: Engine, case: Case, seed: int) -> list[list[int]]:
    """With some steps between arrivals; before a turn its session is announced, often with a draft."""
    rng = random.Random(seed)
    times = itertools.count()
    engine._clock = lambda: 0.005 * next(times)
    deltas: dict[int, list[TokenDelta]] = defaultdict(list)

    def steps(num: int) -> None:
        for _ in range(num):
            engine.step()
            engine.check_invariants()
            collect(engine, deltas)

    for request in case.requests:
        if request.session_id and rng.random() < 0.4:  # time for a draft
            while engine.has_work():
                steps(1)
        if request.session_id and rng.random() < 0.8:
            draft = request.prompt_token_ids[:-3] if rng.random() < 0.6 else []
            advisory = Advisory(request.session_id, AdvisoryEvent.TYPING, lease_ms=60_000, draft_token_ids=draft)
            engine.advise(advisory)
            steps(rng.randrange(6))
        engine.add(GATEWAY, request)
        steps(rng.choice([0, 0, 0, 1, 3]))
    while engine.has_work():
        steps(1)
    return output_tokens(deltas)


def test_all_of_it_at_once_gives_the_same_tokens_and_replays(case: Case, profile: Path, tmp_path: Path) -> None:
    """Who meets whom depends on when copies end, so what has to act does in one of a few histories."""
    idle: list[set[str]] = []
    for seed in range(1, MAX_HISTORIES + 1):
        if seed > MIN_HISTORIES and not set.intersection(*idle):
            break
        files = {"disk_cache_dir": str(tmp_path / f"disk {seed}"), "decision_record": str(tmp_path / f"record {seed}")}
        engine = make_engine(case.folder, latency_profile=str(profile), **files, **EVERYTHING)
        assert serve(engine, case, seed) == case.expected
        idle.append(idle_parts(engine.stats()))
        assert isinstance(engine._core, RecordingScheduler)
        engine._core.close()
        engine.close()
        result = replay(tmp_path / f"record {seed}")
        assert (result.is_identical, result.difference, result.ending) == (True, None, "closed")
    assert set.intersection(*idle) == set()


def idle_parts(stats: EngineStats) -> set[str]:
    """What has not acted, of all that is on."""
    acted = {
        "hidden states": stats.num_conversions[0],
        "uncached tokens": stats.num_recomputed_tokens + stats.num_loaded_tokens,
        "the b/r solver": stats.num_ratio_steps[RatioReason.RECOMPUTES],
        "the prefix cache": stats.num_hit_tokens[0],
        "slower tiers": stats.num_loaded_blocks,
        "preemption": stats.num_preemptions,
        "leases": stats.num_announced_requests,
        "drafts or prefetches": stats.num_prepared_tokens,
    }
    assert sum(stats.num_ratio_steps) == stats.num_steps
    return {name for name, num in acted.items() if num == 0}


def test_the_settings_are_those_that_the_documentation_names() -> None:
    text = (Path(__file__).parents[3] / "docs" / "scheduling.md").read_text()
    assert "`--cache-kinds auto --partial-caching`" in text
