"""How large the host tier is if nobody says, and what it then keeps."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fakes.engine_driver import GREEDY, make_engine, output_tokens, run
from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint
from schedcore.api.config import EngineConfig
from schedcore.api.types import Advisory, AdvisoryEvent, EngineRequest, SessionAction
from worker.process import host_size
from worker.process.engine import Engine
from worker.process.host_size import MAX_HOST_BYTES, host_cache_bytes
from worker.process.tier_setup import keeps_sessions_only

GIB = 1 << 30


def automatic(pool_bytes: int, *, is_cuda: bool = False, **settings: Any) -> int:
    return host_cache_bytes(EngineConfig(model="m", **settings), pool_bytes, is_cuda=is_cuda)


@pytest.mark.parametrize(
    ("free", "pool", "is_cuda", "expected"),
    [
        (64 * GIB, 2 * GIB, False, GIB // 2),  # a quarter of the cache
        (GIB, 2 * GIB, False, GIB // 8),  # an eighth of what is free
        (64 * GIB, 100 * GIB, True, MAX_HOST_BYTES),
        (8 * GIB, 100 * GIB, True, GIB),
        (0, GIB, False, 0),
    ],
)
def test_a_share_of_what_is_free(
    free: int, pool: int, is_cuda: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_size, "available_bytes", lambda: free)
    assert automatic(pool, is_cuda=is_cuda) == expected


def test_what_was_asked_for_counts() -> None:
    assert automatic(GIB, host_cache_bytes=12345) == 12345
    assert automatic(GIB, host_cache_bytes=0) == 0


def test_without_anything_that_could_come_back_there_is_none() -> None:
    assert automatic(GIB, enable_prefix_caching=False) == 0
    assert automatic(GIB, enable_prefix_caching=False, partial_caching=True) > 0


def test_a_disk_needs_a_host_tier() -> None:
    EngineConfig(model="m", disk_cache_dir="d")
    with pytest.raises(ValueError, match="disk_cache_dir needs host_cache_bytes, not 0"):
        EngineConfig(model="m", disk_cache_dir="d", host_cache_bytes=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny-llama"))


def small(folder: Path, **settings: Any) -> Engine:
    fixed = {"max_model_len": 320, "block_size": 4, "restore": "always", "host_cache_bytes": None}
    return make_engine(folder, **{**fixed, "cache_memory_bytes": 600 << 10, **settings})


def ask(engine: Engine, request_id: int, prompt: list[int], session: str = "") -> list[int]:
    answer = output_tokens(run(engine, [EngineRequest(request_id, prompt, 4, GREEDY, session_id=session)]))[0]
    while engine.step():
        pass
    return answer


def test_by_default_an_advisory_brings_back_what_the_cache_has_dropped_and_others_are_not_kept(folder: Path) -> None:
    rng = random.Random(1)
    prompts = [rng.choices(range(VOCAB_SIZE), k=300) for _ in range(8)]
    engine = small(folder)
    ask(engine, 1, prompts[0])
    assert engine.stats().num_saved_blocks == 0
    first = ask(engine, 2, prompts[1][:80], "chat")
    assert engine.stats().num_saved_blocks >= 20
    for i, prompt in enumerate(prompts[2:], 3):
        ask(engine, i, prompt)
    state = engine.advise(Advisory("chat", AdvisoryEvent.TYPING))
    assert (state.action, state.tier_tokens[1]) == (SessionAction.PREFETCH, 80)
    while engine.step():
        pass
    assert ask(engine, 99, prompts[1][:80], "chat") == first
    assert engine.stats().num_hit_tokens[0] >= 76
    engine.close()


@pytest.mark.parametrize(
    ("settings", "sessions_only"),
    [
        ({}, True),
        ({"host_cache_bytes": 1 << 20}, False),
        ({"disk_cache_dir": "d"}, False),
        ({"partial_caching": True}, False),
    ],
)
def test_everything_is_kept_where_somebody_asks_for_it(settings: dict[str, Any], sessions_only: bool) -> None:
    assert keeps_sessions_only(EngineConfig(model="m", **settings)) == sessions_only


def test_a_machine_without_room_for_a_block_has_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_size, "available_bytes", lambda: 100)
    engine = small(folder)
    assert engine.stats().num_host_blocks == 0
    engine.close()
