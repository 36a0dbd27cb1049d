"""Whatever tier serves them, a conversation's tokens are those of an undisturbed run; a damaged disk is a miss."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.engine_driver import GATEWAY, GREEDY, greedy_requests, make_engine, output_tokens, run
from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint
from schedcore.api.types import Advisory, AdvisoryEvent, EngineRequest, SessionAction
from schedcore.record.replay import replay
from schedcore.tiers.disk_tier import DiskTierError
from worker.process.engine import Engine
from worker.tiers.tier_copies import CpuCopies
from worker.tiers.tier_moves import Moves

PROMPT = random.Random(1).choices(range(VOCAB_SIZE), k=200)
SMALL = {"cache_memory_bytes": 250 << 10, "max_model_len": 320, "block_size": 4, "max_num_batched_tokens": 64}
ALWAYS = {"restore": "always"}  # whatever the steps of a tiny model take
HOST = {"host_cache_bytes": 4 << 20, **ALWAYS}
SMALL_HOST = {"host_cache_bytes": 200 << 10, **ALWAYS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny-llama"))


class Chat:
    """One conversation on an engine that others use too."""

    def __init__(self, engine: Engine, seed: int = 2) -> None:
        self.engine, self._random, self._next_id = engine, random.Random(seed), 100

    def turn(self, prompt: list[int], session: str = "chat") -> list[int]:
        self._next_id += 1
        request = EngineRequest(self._next_id, prompt, 12, GREEDY, session_id=session)
        return output_tokens(run(self.engine, [request]))[0]

    def flood(self) -> None:
        """Requests of others that take the device's memory several times."""
        for _ in range(4):
            self.turn(self._random.choices(range(VOCAB_SIZE), k=280), session="")
        settle(self.engine)


def settle(engine: Engine) -> None:
    while engine.step():
        engine.check_invariants()


def num_hits(engine: Engine) -> list[int]:
    return engine.stats().num_hit_tokens


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> list[list[int]]:
    """The answers of a chat of three turns on a large engine without any cache."""
    engine = make_engine(folder, enable_prefix_caching=False)
    return turns(Chat(engine))


def turns(chat: Chat, first: int = 0, last: int = 3, history: list[int] | None = None) -> list[list[int]]:
    prompt, answers = list(PROMPT if history is None else history), []
    for turn in range(first, last):
        answers.append(chat.turn(prompt))
        prompt += [*answers[-1], 7 + turn, 9]
    return answers


def history_after(answers: list[list[int]]) -> list[int]:
    prompt = list(PROMPT)
    for turn, answer in enumerate(answers):
        prompt += [*answer, 7 + turn, 9]
    return prompt


@pytest.mark.parametrize("overlap", [False, True])
def test_a_chat_that_was_evicted_to_the_host_goes_on_with_the_same_tokens(
    overlap: bool, folder: Path, undisturbed: list[list[int]]
) -> None:
    chat = Chat(make_engine(folder, **SMALL, **HOST, overlap_restores=overlap))
    first = turns(chat, 0, 1)
    chat.flood()
    assert first + turns(chat, 1, 3, history_after(first)) == undisturbed
    assert num_hits(chat.engine)[1] > 150
    settle(chat.engine)  # a busy machine's thread of copies may not have said yet that it is through
    assert chat.engine.stats().num_loaded_blocks > 0


@pytest.mark.parametrize("overlap", [True, False])
def test_a_cache_in_int8_comes_back_from_host_and_disk_with_the_same_tokens(
    overlap: bool, folder: Path, tmp_path: Path
) -> None:
    int8 = {"kv_cache_dtype": "int8"}
    expected = turns(Chat(make_engine(folder, **int8, enable_prefix_caching=False)))
    small = {**SMALL, "cache_memory_bytes": 74 << 10, **ALWAYS, **int8}
    on_disk = {"host_cache_bytes": 56 << 10, "overlap_restores": overlap, "disk_cache_dir": str(tmp_path / "disk")}
    for tier, settings in ((1, HOST), (2, on_disk)):
        chat = Chat(make_engine(folder, **{**small, **settings}))
        answers: list[list[int]] = []
        for turn in range(3):
            answers += turns(chat, turn, turn + 1, history_after(answers))
            chat.flood()
        assert answers == expected
        assert num_hits(chat.engine)[tier] > 100
        chat.engine.close()
    restarted = Chat(make_engine(folder, **{**small, **on_disk}))
    assert turns(restarted, 2, 3, history_after(expected[:2])) == expected[2:]
    assert num_hits(restarted.engine)[2] > 100
    restarted.engine.close()


class LateCopies:
    """In place of CpuCopies.load_group(): what is not there yet holds nonsense, and a group comes when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_loads, self.num_groups, self._load_group = 0, 0, CpuCopies.load_group
        monkeypatch.setattr(CpuCopies, "load_group", lambda copies, *arguments: self.load_group(copies, *arguments))

    def load_group(self, copies: CpuCopies, moves: Moves, group: int, fence: object) -> None:
        if group == 0:
            self.num_loads += 1
            copies._pool[moves.units.ravel()] = float("nan")
        for _ in range(2000):
            os.sched_yield()  # to the step
        self._load_group(copies, moves, group, fence)
        self.num_groups = max(self.num_groups, group + 1)


@pytest.mark.parametrize(("family", "cache_bytes"), [("llama", 250 << 10), ("opt", 500 << 10)])
def test_a_step_waits_for_each_layer_group_of_blocks_that_come_late(
    family: str, cache_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_checkpoint(tmp_path / family, family)
    by_layer = {**SMALL, "layers_per_unit": 1, "cache_memory_bytes": cache_bytes}
    expected = turns(Chat(make_engine(model, enable_prefix_caching=False, max_model_len=320)))
    chat = Chat(make_engine(model, **by_layer, **HOST))
    copies = LateCopies(monkeypatch)
    answers: list[list[int]] = []
    for turn in range(3):
        answers += turns(chat, turn, turn + 1, history_after(answers))
        chat.flood()
    assert answers == expected
    assert copies.num_loads >= 2
    assert copies.num_groups >= 2


def test_what_fails_while_a_step_waits_for_it_stops_the_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = Chat(make_engine(folder, **SMALL, **HOST))
    answers = turns(chat, 0, 1)
    chat.flood()

    def fail(copies: CpuCopies, moves: Moves, group: int, fence: object) -> None:
        raise OSError("the memory is gone")

    monkeypatch.setattr(CpuCopies, "load_group", fail)
    chat.engine.add(GATEWAY, EngineRequest(1, history_after(answers), 12, GREEDY))
    with pytest.raises(OSError, match="the memory is gone"):
        settle(chat.engine)
    assert chat.engine.take_deltas() == {}  # no token of what was not there


def test_a_chat_that_was_evicted_to_the_disk_and_an_engine_that_was_restarted(
    folder: Path, undisturbed: list[list[int]], tmp_path: Path
) -> None:
    settings = {**SMALL, **SMALL_HOST, "disk_cache_dir": str(tmp_path / "disk")}
    chat = Chat(make_engine(folder, **settings))
    answers = turns(chat, 0, 1)
    chat.flood()
    answers += turns(chat, 1, 2, history_after(answers))
    assert num_hits(chat.engine)[2] > 100
    settle(chat.engine)
    chat.engine.close()

    restarted = Chat(make_engine(folder, **settings))
    assert restarted.engine.stats().disk_bytes > 0
    assert answers + turns(restarted, 2, 3, history_after(answers)) == undisturbed
    assert num_hits(restarted.engine)[2] > 150
    restarted.engine.close()


@pytest.mark.parametrize("damage", ["flip", "truncate", "swap", "empty"])
def test_damaged_segments_are_misses(damage: str, folder: Path, undisturbed: list[list[int]], tmp_path: Path) -> None:
    settings = {**SMALL, **SMALL_HOST, "disk_cache_dir": str(tmp_path)}
    chat = Chat(make_engine(folder, **settings))
    answers = turns(chat, 0, 2)
    settle(chat.engine)
    chat.engine.close()
    rng = random.Random(3)
    for path in tmp_path.glob("segment-*"):
        path.write_bytes(_damaged(path.read_bytes(), damage, rng))
    restarted = Chat(make_engine(folder, **settings))
    assert answers + turns(restarted, 2, 3, history_after(answers)) == undisturbed
    restarted.engine.close()


def _damaged(data: bytes, damage: str, rng: random.Random) -> bytes:
    if damage == "empty":
        return b""
    if damage == "truncate":
        return data[: rng.randrange(len(data))]
    spoiled = bytearray(data)
    if damage == "swap":  # whole records in each other's place
        middle = len(data) // 2
        return bytes(spoiled[:100] + spoiled[middle:] + spoiled[100:middle])
    for _ in range(200):
        spoiled[rng.randrange(len(spoiled))] ^= 1 << rng.randrange(8)
    return bytes(spoiled)


def test_another_model_does_not_use_the_disk_of_this_one(folder: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", seed=5)
    settings = {**SMALL, **HOST, "disk_cache_dir": str(tmp_path / "disk")}
    chat = Chat(make_engine(folder, **settings))
    turns(chat, 0, 1)
    settle(chat.engine)
    chat.engine.close()
    restarted = Chat(make_engine(other, **settings))
    restarted.turn(PROMPT)
    assert num_hits(restarted.engine) == [0, 0, 0]
    restarted.engine.close()


def test_two_engines_do_not_share_a_folder(folder: Path, tmp_path: Path) -> None:
    settings = {**HOST, "disk_cache_dir": str(tmp_path)}
    engine = make_engine(folder, **settings)
    with pytest.raises(DiskTierError, match="in use by another engine: give each its own"):
        make_engine(folder, **settings)
    engine.close()


def test_preempted_requests_come_back_from_the_host_with_the_same_tokens(folder: Path) -> None:
    prompts = [random.Random(i).choices(range(VOCAB_SIZE), k=60) for i in range(10)]
    requests = greedy_requests(prompts, 150)
    expected = output_tokens(run(make_engine(folder), requests))
    engine = make_engine(folder, **SMALL, **HOST)
    assert output_tokens(run(engine, requests)) == expected
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert stats.num_loaded_blocks > 0


@pytest.fixture
def chat(folder: Path) -> Iterator[Chat]:
    engine = make_engine(folder, **SMALL, **HOST)
    yield Chat(engine)
    engine.close()


def test_an_advisory_brings_the_session_back_before_its_request(chat: Chat, undisturbed: list[list[int]]) -> None:
    answers = turns(chat, 0, 1)
    chat.flood()
    assert not chat.engine.advise(Advisory("nobody", AdvisoryEvent.TYPING)).is_known
    state = chat.engine.advise(Advisory("chat", AdvisoryEvent.TYPING, request_id=5, lease_ms=60_000))
    assert (state.request_id, state.is_known, state.action) == (5, True, SessionAction.PREFETCH)
    assert state.tier_tokens[1] > 150
    assert state.tier_bytes[1] == state.tier_tokens[1] // 4 * chat.engine.stats().block_bytes
    settle(chat.engine)
    assert chat.engine.advise(Advisory("chat", AdvisoryEvent.QUERY)).tier_tokens[0] > 200
    answers += turns(chat, 1, 2, history_after(answers))
    assert answers == undisturbed[:2]
    stats = chat.engine.stats()
    assert stats.num_hit_tokens[0] > 200
    assert (stats.num_announced_requests, stats.num_wasted_tokens, stats.num_leases) == (1, 0, 0)


def test_a_session_of_an_earlier_life_is_brought_back_from_the_disk_by_an_advisory(
    folder: Path, undisturbed: list[list[int]], tmp_path: Path
) -> None:
    settings = {**SMALL, **HOST, "disk_cache_dir": str(tmp_path)}
    before = Chat(make_engine(folder, **settings))
    answers = turns(before, 0, 1)
    settle(before.engine)
    num_tokens = before.engine.advise(Advisory("chat", AdvisoryEvent.QUERY)).num_tokens
    before.engine.close()

    chat = Chat(make_engine(folder, **settings))
    state = chat.engine.advise(Advisory("chat", AdvisoryEvent.TYPING, lease_ms=60_000))
    assert (state.is_known, state.num_tokens, state.action) == (True, num_tokens, SessionAction.PREFETCH)
    assert state.tier_tokens == [0, 0, num_tokens // 4 * 4]
    settle(chat.engine)
    assert chat.engine.advise(Advisory("chat", AdvisoryEvent.QUERY)).tier_tokens[0] == num_tokens // 4 * 4
    answers += turns(chat, 1, 2, history_after(answers))
    assert answers == undisturbed[:2]
    stats = chat.engine.stats()
    assert stats.num_hit_tokens[0] == num_tokens // 4 * 4
    assert stats.num_fetched_blocks == num_tokens // 4
    chat.engine.close()


def test_what_a_later_life_does_not_know(folder: Path, tmp_path: Path) -> None:
    settings = {**SMALL, **HOST, "disk_cache_dir": str(tmp_path / "disk")}
    chat = Chat(make_engine(folder, **settings))
    chat.turn(PROMPT, "over")
    chat.turn(PROMPT, "released later")
    chat.engine.advise(Advisory("over", AdvisoryEvent.RELEASE))
    settle(chat.engine)
    chat.engine.close()

    def is_known(engine: Engine, *sessions: str) -> list[bool]:
        return [engine.advise(Advisory(session, AdvisoryEvent.QUERY)).is_known for session in sessions]

    other = make_engine(write_checkpoint(tmp_path / "other", seed=5), **settings)
    assert is_known(other, "over", "released later") == [False, False]
    other.close()
    smaller = make_engine(folder, **{**settings, "max_model_len": 100})  # does not know it, and has to forget it
    assert is_known(smaller, "over", "released later") == [False, False]
    smaller.close()
    again = make_engine(folder, **settings)
    assert is_known(again, "over", "released later") == [False, True]
    again.close()
    smaller = make_engine(folder, **{**settings, "max_model_len": 100})
    smaller.advise(Advisory("released later", AdvisoryEvent.RELEASE))
    smaller.close()
    again = make_engine(folder, **settings)
    assert is_known(again, "released later") == [False]
    again.close()


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "file in its place"])
def test_a_damaged_session_book_is_a_fresh_start(damage: str, folder: Path, tmp_path: Path) -> None:
    settings = {**SMALL, **HOST, "disk_cache_dir": str(tmp_path)}
    chat = Chat(make_engine(folder, **settings))
    chat.turn(PROMPT)
    settle(chat.engine)
    chat.engine.close()
    [path] = (tmp_path / "sessions").iterdir()
    if damage == "file in its place":
        path.unlink()
        (tmp_path / "sessions").rmdir()
        (tmp_path / "sessions").touch()
    else:
        path.write_bytes(_damaged(path.read_bytes(), damage, random.Random(3)))
    restarted = Chat(make_engine(folder, **settings))
    assert not restarted.engine.advise(Advisory("chat", AdvisoryEvent.QUERY)).is_known
    restarted.turn(PROMPT)
    assert restarted.engine.advise(Advisory("chat", AdvisoryEvent.QUERY)).is_known
    restarted.engine.close()


def test_book_and_segments_keep_one_bound(folder: Path, tmp_path: Path) -> None:
    bound = 300 << 10
    engine = make_engine(folder, **SMALL, **HOST, disk_cache_dir=str(tmp_path), disk_cache_bytes=bound)
    chat = Chat(engine)
    for i in range(12):
        chat.turn(random.Random(i).choices(range(VOCAB_SIZE), k=280), f"chat {i}")
        settle(engine)
    engine.close()
    sizes = {path: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    assert bound / 2 < sum(sizes.values()) <= bound
    assert any(path.parent.name == "sessions" for path in sizes)


def test_a_draft_is_computed_ahead(chat: Chat) -> None:
    answers = turns(chat, 0, 1)
    draft = [*history_after(answers), *[11] * 40]
    state = chat.engine.advise(Advisory("chat", AdvisoryEvent.TYPING, draft_token_ids=draft))
    assert state.action == SessionAction.DRAFT_PREFILL
    settle(chat.engine)
    assert chat.engine.stats().num_prepared_tokens >= 36
    [deltas] = run(chat.engine, [EngineRequest(1, [*draft, 3], 5, GREEDY, session_id="chat")]).values()
    assert deltas[0].num_cached_tokens >= len(draft) - 4


def test_a_chat_on_all_tiers_replays_with_identical_decisions(folder: Path, tmp_path: Path) -> None:
    settings = {**SMALL, **SMALL_HOST, "disk_cache_dir": str(tmp_path / "disk")}
    earlier = Chat(make_engine(folder, **settings))
    answers = turns(earlier, 0, 1)
    settle(earlier.engine)
    earlier.engine.close()
    chat = Chat(make_engine(folder, decision_record=str(tmp_path / "decisions"), **settings))
    assert chat.engine.advise(Advisory("chat", AdvisoryEvent.TYPING)).action is SessionAction.PREFETCH
    chat.flood()
    chat.engine.advise(Advisory("chat", AdvisoryEvent.TYPING, draft_token_ids=[*history_after(answers), *[3] * 20]))
    turns(chat, 1, 2, history_after(answers))
    chat.engine.abort_all(GATEWAY)
    settle(chat.engine)
    chat.engine._core.close()  # type: ignore[attr-defined]
    chat.engine.close()
    result = replay(tmp_path / "decisions")
    assert (result.is_identical, result.difference) == (True, None)


@pytest.mark.gpu
def test_on_a_cuda_device(folder: Path, undisturbed: list[list[int]]) -> None:
    chat = Chat(make_engine(folder, **SMALL, **HOST, device="cuda"))
    first = turns(chat, 0, 1)
    chat.flood()
    assert first + turns(chat, 1, 3, history_after(first)) == undisturbed
    assert num_hits(chat.engine)[1] > 150
