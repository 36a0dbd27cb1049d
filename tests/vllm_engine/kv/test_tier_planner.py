"""The planner against workers that are exact: what a device block holds is known, and every load is checked."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from schedcore._core import algorithms
from vllm_engine.kv.restore_costs import RestoreCosts
from vllm_engine.kv.step_moves import Opened, StepMoves, TierReport
from vllm_engine.kv.tier_planner import TierPlanner

SIZE = 4
NOBODY = "nobody"


@dataclass
class Request:
    request_id: str
    all_token_ids: list[int]
    num_computed_tokens: int = 0
    cache_salt: str | None = None
    skip_reading_prefix_cache: bool = False
    num_preemptions: int = 0
    lora_request: Any = None
    mm_features: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


@dataclass
class Step:
    num_scheduled_tokens: dict[str, int]


class Workers:
    """Device blocks, host slots and disk by what they hold: the tokens up to a block's end, and the salt."""

    def __init__(self) -> None:
        self.device: dict[int, object] = {}
        self.host: dict[int, object] = {}
        self.disk: dict[bytes, object] = {}
        self.damaged: set[bytes] = set()
        self.waiting: list[tuple[int, bool]] = []  # moves that have not ended, and whether they will succeed

    def carry_out(self, moves: StepMoves) -> None:
        for block, slot in moves.saves:
            self.host[slot] = self.device[block]
        for move_id, slot, key in moves.stores:
            self.disk[key] = self.host[slot]
            self.waiting.append((move_id, True))
        for move_id, slot, key in moves.fetches:
            is_good = key in self.disk and key not in self.damaged
            self.host[slot] = self.disk[key] if is_good else None
            self.waiting.append((move_id, is_good))
        for slot, block in moves.loads:
            self.device[block] = self.host[slot]

    def report(self, num: int) -> TierReport:
        taken, self.waiting = self.waiting[:num], self.waiting[num:]
        return TierReport({i: 1 for i, _ in taken}, {i for i, is_good in taken if not is_good})


def content(request: Request, i: int) -> object:
    return (request.cache_salt, tuple(request.all_token_ids[: (i + 1) * SIZE]))


def make(num_slots: int = 8, has_disk: bool = True, **fields: Any) -> TierPlanner:
    return TierPlanner("model", SIZE, num_slots, (1 << 20) * has_disk, RestoreCosts(100), **fields)


class Story:
    """A device without a prefix cache: a request computes all that is not loaded, in chunks, and its blocks go."""

    def __init__(self, planner: TierPlanner, seed: int) -> None:
        self.planner, self.workers, self.draw = planner, Workers(), random.Random(seed)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.blocks: dict[str, list[int]] = {}
        self.free = list(range(1, 60))
        self.num_made = self.num_loaded = 0

    def block_ids(self, request_id: str) -> list[int]:
        return self.blocks.get(request_id, [])

    def arrive(self) -> None:
        self.num_made += 1
        length, kind = self.draw.randint(1, 40), self.draw.randrange(3)
        tokens = [kind] * length if self.draw.random() < 0.7 else [self.draw.randrange(9) for _ in range(length)]
        request = Request(str(self.num_made), tokens, cache_salt=self.draw.choice((None, "s")))
        self.waiting.append(request)
        self.planner.add(request)

    def admit(self, request: Request) -> None:
        num_loaded = self.planner.num_loadable(request, 0)
        num_blocks = -(-(request.num_tokens + 20) // SIZE)
        if num_loaded is None or num_blocks > len(self.free):
            return
        self.waiting.remove(request)
        self.running.append(request)
        self.blocks[request.request_id] = [self.free.pop(0) for _ in range(num_blocks)]
        self.planner.begin_load(request, self.block_ids(request.request_id), num_loaded)
        request.num_computed_tokens = num_loaded
        self.num_loaded += num_loaded

    def give_back(self, request: Request, is_end: bool) -> None:
        self.planner.release(request, self.block_ids)
        self.running.remove(request)
        self.free += self.blocks.pop(request.request_id)
        request.num_computed_tokens = 0
        if is_end:
            self.planner.end(request.request_id)
        else:
            self.waiting.append(request)

    def step(self) -> None:
        draw = self.draw
        for request in list(self.running):
            if draw.random() < 0.1:
                self.give_back(request, is_end=draw.random() < 0.5)
        for request in list(self.waiting):
            if draw.random() < 0.7:
                self.admit(request)
        tokens = {r.request_id: n for r in self.running if (n := min(draw.randint(0, 9), self._left(r))) > 0}
        moves = self.planner.plan(Step(tokens), self.block_ids)
        self.workers.carry_out(moves)
        self._check_loads(moves)
        for request in self.running:
            request.num_computed_tokens += tokens.get(request.request_id, 0)
            self._write(request)
            if request.num_computed_tokens == request.num_tokens and request.num_tokens < 55:
                request.all_token_ids.append(draw.randrange(9))
        if draw.random() < 0.1:
            self.workers.damaged |= set(draw.sample(sorted(self.workers.disk), min(2, len(self.workers.disk))))
        self.planner.take(self.workers.report(draw.randint(0, 6)))
        self.planner.check_invariants()

    def _left(self, request: Request) -> int:
        return request.num_tokens - request.num_computed_tokens

    def _write(self, request: Request) -> None:
        for i, block in enumerate(self.blocks[request.request_id]):
            is_complete = (i + 1) * SIZE <= request.num_computed_tokens
            self.workers.device[block] = content(request, i) if is_complete else NOBODY

    def _check_loads(self, moves: StepMoves) -> None:
        loaded = {block for _, block in moves.loads}
        for request in self.running:
            for i, block in enumerate(self.blocks[request.request_id]):
                if block in loaded:
                    assert self.workers.device[block] == content(request, i)


@pytest.mark.parametrize("seed", range(12))
def test_every_block_that_is_loaded_is_the_right_one(seed: int) -> None:
    story = Story(make(num_slots=1 + 3 * (seed % 5), has_disk=seed % 2 == 0), seed)
    for _ in range(300):
        if story.draw.random() < 0.5:
            story.arrive()
        story.step()
    assert story.num_loaded > 0
    for request in list(story.running):
        story.give_back(request, is_end=True)
    for request in story.waiting:
        story.planner.end(request.request_id)
    for _ in range(500):
        if not story.planner.has_work():
            break
        story.workers.carry_out(story.planner.plan(Step({}), story.block_ids))
        story.planner.take(story.workers.report(10))
    assert not story.planner.has_work(), "and nothing is under way for ever"
    story.planner.check_invariants()


def computed(planner: TierPlanner, request: Request) -> StepMoves:
    """The request came, was computed and went; the moves that followed."""
    planner.add(request)
    request.num_computed_tokens = request.num_tokens
    planner.release(request, lambda _: range(1, 100))
    planner.end(request.request_id)
    return planner.plan(Step({}), lambda _: [])


def test_only_complete_blocks_are_saved_and_each_once() -> None:
    planner = make()
    assert [block for block, _ in computed(planner, Request("1", [7] * 11)).saves] == [1, 2]
    assert computed(planner, Request("2", [7] * 11)).saves == []
    assert planner.counters.num_saved_blocks == 2


def test_what_another_computes_in_the_same_step_is_saved_by_the_next() -> None:
    """vLLM names blocks when they are planned, so one that comes in with them finds them, not yet computed."""
    planner = make()
    request = Request("1", [7] * 10)
    planner.add(request)
    planner.begin_load(request, [1, 2, 3], 0)
    request.num_computed_tokens = 2 * SIZE  # on the device, says vLLM
    assert planner.plan(Step({"1": 2}), lambda _: [1, 2, 3]).saves == []
    request.num_computed_tokens = 10
    assert [block for block, _ in planner.plan(Step({"1": 1}), lambda _: [1, 2, 3]).saves] == [1, 2]


def test_the_last_token_is_computed_whatever_is_there() -> None:
    planner = make()
    computed(planner, Request("1", [7] * 8))
    again = Request("2", [7] * 8)
    planner.add(again)
    assert planner.num_loadable(again, 0) == SIZE
    assert planner.num_known(again, 0) == SIZE
    assert planner.num_loadable(again, SIZE) == 0


def test_images_and_other_adapters_find_nothing() -> None:
    planner = make()
    computed(planner, Request("1", [7] * 9))
    lora = type("Lora", (), {"lora_name": "a", "lora_path": "/a"})()
    for other in (
        Request("2", [7] * 9, mm_features=[1]),
        Request("3", [7] * 9, lora_request=lora),
        Request("4", [7] * 9, cache_salt="s"),
        Request("5", [7] * 9, skip_reading_prefix_cache=True),
    ):
        planner.add(other)
        assert planner.num_loadable(other, 0) == 0


def test_several_workers_have_all_to_be_done() -> None:
    planner = make(num_workers=2)
    moves = computed(planner, Request("1", [7] * 9))
    ids = {move_id: 1 for move_id, *_ in moves.stores}
    planner.take(TierReport(dict(ids)))
    assert planner.has_work()
    planner.take(TierReport(dict(ids), failed={next(iter(ids))}))
    assert not planner.has_work()
    assert planner.counters.num_stored_blocks == 1
    one = TierReport({1: 1}, opened=Opened({b"a", b"b"}, 2.0), disk_bytes=3)
    both = one.aggregate(TierReport({1: 1, 2: 1}, {2}, opened=Opened({b"b"}, 1.0), disk_bytes=4))
    assert (both.num_ended, both.failed, both.disk_bytes) == ({1: 2, 2: 1}, {2}, 7)
    assert both.opened == Opened({b"b"}, 1.0)


def test_what_is_computed_faster_is_not_brought_back() -> None:
    coefficients = algorithms.LatencyCoefficients(step_base=0.01, prefill_token=1e-4)
    latency = algorithms.LatencyModel("corrected", coefficients)
    slow, fast = (RestoreCosts(1000, latency, rate) for rate in (1e6, 1e9))  # a block: 1 ms or 1 us; computing: 0.4 ms
    assert fast.is_faster(40, 0, 32, 0, SIZE)
    assert not slow.is_faster(40, 0, 32, 0, SIZE)
    fast.disk_bytes_per_second = 1e6
    assert not fast.is_faster(40, 0, 32, 8, SIZE)
