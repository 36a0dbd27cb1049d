"""Fair sharing over an engine in virtual time: steps cost what they cost, rows are picked unkindly but for favour."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.offline.running.fair_share import FairShare, LookAhead

LOOK_AHEAD = LookAhead(max_rows=512, max_tokens=10**9, max_lag_tokens=20_000)
PROMPT = 100


@dataclass(eq=False)
class Row:
    tenant: str
    num_output: int
    num_done: int = 0
    is_favoured: bool = False

    @property
    def cost(self) -> int:
        return PROMPT + self.num_output


class VirtualEngine:
    """A step gives rows a token each and takes base + per_row * rows.

    Favoured rows go first, the others then lengthen a step by half; `favourite` is picked first among equals.
    """

    def __init__(self, base: float, per_row: float, favourite: str, max_running: int = 256) -> None:
        self.running: list[Row] = []
        self.waiting: list[Row] = []
        self.now = 0.0
        self._base, self._per_row = base, per_row
        self._favourite, self._max_running = favourite, max_running

    def step(self) -> list[Row]:
        self._admit()
        favoured = [row for row in self.running if row.is_favoured]
        others = [row for row in self.running if not row.is_favoured]
        seconds = self._seconds(len(favoured))
        while favoured and others and self._seconds(len(favoured) + len(others)) > 1.5 * seconds:
            others.pop()
        self.now += self._seconds(len(favoured) + len(others))
        for row in favoured + others:
            row.num_done += 1
        ended = [row for row in self.running if row.num_done == row.num_output]
        self.running = [row for row in self.running if row.num_done < row.num_output]
        return ended

    def _admit(self) -> None:
        self.waiting.sort(key=lambda row: (not row.is_favoured, row.tenant != self._favourite))
        num_favoured = sum(row.is_favoured for row in self.waiting)
        paused = [row for row in self.running if not row.is_favoured]
        while paused and num_favoured > self._max_running - len(self.running):
            self.running.remove(paused[-1])
            self.waiting.append(paused.pop())
        free = self._max_running - len(self.running)
        self.running, self.waiting = self.running + self.waiting[:free], self.waiting[free:]

    def _seconds(self, num_rows: int) -> float:
        return self._base + self._per_row * num_rows


class World:
    """One batch per tenant, named like it."""

    def __init__(self, engine: VirtualEngine, look_ahead: LookAhead = LOOK_AHEAD) -> None:
        self.engine, self.share = engine, FairShare(look_ahead)
        self.pending: dict[str, list[Row]] = {}
        self.ended_at: dict[str, float] = {}
        self.num_ended = 0

    def open(self, tenant: str, outputs: list[int]) -> None:
        self.pending[tenant] = [Row(tenant, num_output) for num_output in outputs]
        self.share.open(tenant, tenant, len(outputs))

    def turn(self) -> None:
        for tenant in self.share.tenants():
            self._take_back(tenant, self.share.num_excess(tenant))
        while (name := self.share.next_batch()) is not None:
            row = self.pending[name].pop(0)
            row.is_favoured = self.share.is_favoured(name)
            self.share.start(name, PROMPT, row.cost)
            self.engine.waiting.append(row)
        for row in self.engine.step():
            self.num_ended += 1
            self.ended_at[row.tenant] = self.engine.now
            self.share.end(row.tenant, PROMPT, row.cost, row.cost)

    def _take_back(self, tenant: str, num_excess: int) -> None:
        rows = [row for row in self.engine.waiting if row.tenant == tenant and not row.num_done]
        for row in rows[:num_excess]:
            self.engine.waiting.remove(row)
            self.share.take_back(tenant, PROMPT, row.cost)
            self.pending[tenant].insert(0, row)

    def run_until_done(self, tenant: str) -> float:
        while self.pending[tenant] or self._has(tenant):
            self.turn()
        return self.ended_at[tenant]

    def _has(self, tenant: str) -> bool:
        return any(row.tenant == tenant for row in self.engine.running + self.engine.waiting)


@pytest.mark.parametrize(("base", "per_row"), [(1.0, 0.001), (1.0, 0.01), (1.0, 0.1), (0.0, 1.0)])
@pytest.mark.parametrize("turns_before", [0, 3, 150, 400])
@pytest.mark.parametrize("favourite", ["large", "small"])
def test_small_tenant_beside_a_large_one_takes_at_most_twice_its_time(
    base: float, per_row: float, turns_before: int, favourite: str
) -> None:
    rng = random.Random(turns_before)
    small = [rng.randint(30, 120) for _ in range(50)]

    alone = World(VirtualEngine(base, per_row, favourite))
    alone.open("small", small)
    solo = alone.run_until_done("small")

    world = World(VirtualEngine(base, per_row, favourite))
    world.open("large", [rng.randint(30, 120) for _ in range(50_000)])
    for _ in range(turns_before):
        world.turn()
    begun = world.engine.now
    world.open("small", small)
    assert world.run_until_done("small") - begun <= 2.0 * solo


def test_large_tenants_get_equal_shares_although_the_core_prefers_one() -> None:
    world = World(VirtualEngine(1.0, 0.05, "a"))
    for tenant in "ab":
        world.open(tenant, [50] * 20_000)
    for _ in range(3000):
        world.turn()
    left = [len(world.pending[tenant]) for tenant in "ab"]
    served = [20_000 - num_left for num_left in left]
    lag_rows = LOOK_AHEAD.max_lag_tokens / (PROMPT + 50)
    assert abs(served[0] - served[1]) <= 2 * LOOK_AHEAD.max_rows + lag_rows
    assert min(served) > 3000


def test_who_comes_again_and_again_with_little_is_favoured_no_longer() -> None:
    world = World(VirtualEngine(0.0, 1.0, "small"))
    world.open("large", [50] * 50_000)
    favours = []
    for _ in range(60):
        world.pending["small"] = [Row("small", 50) for _ in range(20)]
        world.share.open("small", "small", 20)
        favours.append(world.share.is_favoured("small"))
        world.run_until_done("small")
        world.share.close("small")
    assert favours[0]
    assert not all(favours)
    served = 50_000 - len(world.pending["large"])
    assert served > 0.5 * 60 * 20


def test_tenant_alone_has_the_whole_look_ahead() -> None:
    world = World(VirtualEngine(1.0, 0.01, "a"))
    world.open("a", [50] * 2000)
    world.turn()
    assert world.share.num_rows == LOOK_AHEAD.max_rows


def test_batches_of_a_tenant_share_by_weight() -> None:
    share = FairShare(LOOK_AHEAD)
    share.open("late", "t", 10_000)
    share.open("early", "t", 10_000)
    share.set_weight("late", 4.0)
    started = {"late": 0, "early": 0}
    for _ in range(500):
        name = share.next_batch()
        assert name is not None
        started[name] += 1
        share.start(name, PROMPT, 150)
    assert started["late"] == pytest.approx(400, abs=4)


def test_row_larger_than_the_look_ahead_may_start_alone() -> None:
    share = FairShare(LookAhead(max_rows=8, max_tokens=100, max_lag_tokens=100))
    share.open("b", "t", 2)
    assert share.next_batch() == "b"
    share.start("b", 5000, 6000)
    assert share.next_batch() is None
    share.end("b", 5000, 6000, 5500)
    assert share.next_batch() == "b"


def test_wide_estimates_do_not_cost_what_was_not_used() -> None:
    share = FairShare(LOOK_AHEAD)
    share.open("modest", "a", 100)
    share.open("boasting", "b", 100)
    for _ in range(50):  # each waits for its row, b asks for a hundred times as much as it takes
        for name, cost in (("modest", 10), ("boasting", 1000)):
            share.start(name, 5, cost)
            share.end(name, 5, cost, 10)
    turns = []
    for _ in range(20):
        name = share.next_batch()
        assert name is not None
        turns.append(name)
        share.start(name, 5, 10)
        share.end(name, 5, 10, 10)
    assert turns.count("modest") == 10


@given(st.data())
def test_every_row_ends_and_nobody_exceeds_the_look_ahead(data: st.DataObject) -> None:
    look_ahead = LookAhead(
        max_rows=data.draw(st.integers(1, 40)),
        max_tokens=data.draw(st.integers(1, 3000)),
        max_lag_tokens=data.draw(st.integers(0, 3000)),
    )
    tenants = data.draw(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=40), min_size=1, max_size=4))
    world = World(VirtualEngine(1.0, 0.1, data.draw(st.sampled_from("abcd")), max_running=8), look_ahead)
    opens_at = {name: data.draw(st.integers(0, 30)) for name in "abcd"[: len(tenants)]}
    total = sum(map(len, tenants))
    for turn in range(100 * total + 100):
        for name, outputs in zip("abcd", tenants, strict=False):
            if opens_at[name] == turn:
                world.open(name, list(outputs))
        world.turn()
        assert world.share.num_rows <= max(look_ahead.max_rows, len(tenants))
        if world.num_ended == total:
            break
    assert world.num_ended == total
    assert world.share.num_rows == world.share.num_tokens == 0


def test_a_small_batch_goes_before_anothers_many_flex_requests() -> None:
    share = FairShare(LOOK_AHEAD)
    share.open("a", "alice", 40)
    assert not share.is_favoured("alice")
    share.note_flex({"bob": 256}, {})
    assert share.is_favoured("alice")
    share.note_flex({}, {"bob": 1000})
    assert not share.is_favoured("alice")


def test_flex_requests_count_towards_their_tenants_share_of_the_look_ahead() -> None:
    share = FairShare(LookAhead(max_rows=8, max_tokens=10**9, max_lag_tokens=20_000))
    share.open("a", "alice", 100)
    share.open("b", "bob", 100)
    share.note_flex({"bob": 6}, {})
    started = []
    while (batch := share.next_batch()) is not None:
        share.start(batch, 1, 1)
        started.append(batch)
    assert started == ["a"] * 4  # half of the rows; bob has more than his half already


def test_flex_requests_that_ended_are_charged_to_their_tenants_batches() -> None:
    share = FairShare(LOOK_AHEAD)
    share.open("a", "alice", 100)
    share.open("b", "bob", 100)
    share.note_flex({}, {"bob": LOOK_AHEAD.max_lag_tokens + 1})
    for _ in range(2):
        share.start("b", 1, 1) if share.next_batch() == "b" else share.start("a", 1, 1)
    starts = []
    for _ in range(20):
        batch = share.next_batch()
        assert batch is not None
        share.start(batch, 1, 1)
        starts.append(batch)
    assert set(starts) == {"a"}
