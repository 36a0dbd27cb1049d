"""The knapsack against a sorted twin (identical choices), exact optima (factor 2) and the fractional bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from schedcore._core import algorithms

SKIP, COMPACT, KV = 0, 1, 2
PAST_TARGET, MUST_SCHEDULE = algorithms.PAST_TARGET, algorithms.MUST_SCHEDULE
RESIDENT_KV, RESIDENT_COMPACT = algorithms.RESIDENT_KV, algorithms.RESIDENT_COMPACT


@dataclass
class Case:
    """Numbers are multiples of 2^-16 or so: sums and products are exact, two implementations agree bit by bit."""

    pending: npt.NDArray[np.float32]
    units: npt.NDArray[np.int32]
    flags: npt.NDArray[np.uint8]
    keep: npt.NDArray[np.float32]
    capacity: int
    compact_ratio: float = 0.5
    alpha: float = 0.0
    decay: float = 0.0
    kept: float = 0.0  # share of keep when KV becomes compact
    block_units: int = 2

    def solve(self) -> tuple[list[int], float, int]:
        compact = [
            algorithms.knapsack_compact_units(m, self.compact_ratio, self.block_units) for m in self.units.tolist()
        ]
        choices, value, units = algorithms.Knapsack(
            compact_seconds_per_unit=self.alpha, past_target_decay=self.decay, kept_share=self.kept
        ).solve(self.pending, self.units, np.array(compact, np.int32), self.flags, self.keep, self.capacity)
        return choices.tolist(), value, units

    def options(self) -> list[dict[int, tuple[int, float]]]:
        """Per candidate: choice -> (units, gain), for every choice it may get."""
        num_candidates = len(self.flags)
        options = []
        for p, m, flags, keep in zip(self.pending, self.units, self.flags, self.keep, strict=True):
            m = int(m)
            value = float(p) * (self.decay if flags & PAST_TARGET else 1.0)
            kept_compact = float(keep) if flags & RESIDENT_COMPACT else 0.0
            kept_kv = float(keep) if flags & RESIDENT_KV else kept_compact
            option = {SKIP: (0, 0.0), KV: (m, value + kept_kv)}
            if self.compact_ratio < 1 and m > self.block_units:
                kept = kept_compact + (self.kept * float(keep) if flags & RESIDENT_KV else 0.0)
                gain = value - num_candidates * self.alpha * m + kept
                option[COMPACT] = (math.ceil(self.compact_ratio * m - 1e-9), gain)
            options.append(option)
        return options


def random_case(rng: np.random.Generator, n: int, tight: float, *, starving: float = 0.0) -> Case:
    units = 2 * rng.integers(1, 40, n)
    if rng.random() < 0.3:  # a few are large, most of the others still fit after the first misfit
        units = np.where(rng.random(n) < 0.1, units * 16, 2 + units // 16 * 2)
    flags = rng.choice([0, 0, PAST_TARGET], n) | rng.choice([0, RESIDENT_KV, RESIDENT_COMPACT], n)
    flags = flags | np.where(rng.random(n) < starving, MUST_SCHEDULE, 0)
    keep = rng.integers(0, 128, n) / 64
    alpha, decay, kept, compact_ratio = (
        rng.choice([0, 1, 4, 16]) / 4096,
        rng.choice([0, 0.5]),
        rng.choice([0, 0.75]),
        rng.choice([0.25, 0.5, 0.75, 2.0]),
    )
    pending = rng.integers(0, 640, n) / 64
    style = rng.random()
    if style < 0.2:  # many nearly equal densities
        pending = (units * 4 + rng.integers(0, 2, n)) / 64
    elif style < 0.4:  # nothing -> compact about as dense as compact -> kv, for all
        flags, keep, compact_ratio = flags & ~PAST_TARGET, np.zeros(n), 0.5
        pending = 2 * n * alpha * units + rng.integers(0, 4, n) / 64
    return Case(
        pending=pending.astype(np.float32),
        units=units.astype(np.int32),
        flags=flags.astype(np.uint8),
        keep=keep.astype(np.float32),
        capacity=int(tight * units.sum()),
        compact_ratio=float(compact_ratio),
        alpha=float(alpha),
        decay=float(decay),
        kept=float(kept),
    )


def case(pending: Sequence[float], units: Sequence[int], capacity: int, **settings: object) -> Case:
    n = len(units)
    flags = settings.pop("flags", [0] * n)
    keep = settings.pop("keep", [0.0] * n)
    arrays = (
        np.array(pending, np.float32),
        np.array(units, np.int32),
        np.array(flags, np.uint8),
        np.array(keep, np.float32),
    )
    return Case(*arrays, capacity, **settings)  # type: ignore[arg-type]


# Oracles


def sorted_greedy(case: Case) -> list[int]:
    """The same algorithm, with a plain sort and no shortcut."""
    options, n = case.options(), len(case.units)
    if case.units.sum() <= case.capacity:
        return [KV] * n
    start, room = place_starving(case, options)
    choices = fill(case, options, start, room)
    alone = [best_alone(options[i], start[i], room) for i in range(n)]
    gains = [options[i][alone[i]][1] - options[i][start[i]][1] for i in range(n)]
    value = sum(options[i][choices[i]][1] - options[i][start[i]][1] for i in range(n))
    best = int(np.argmax(gains))
    if gains[best] <= value:
        return choices
    first = list(start)
    first[best] = alone[best]
    room -= options[best][alone[best]][0] - options[best][start[best]][0]
    return fill(case, options, first, room)


def place_starving(case: Case, options: list[dict[int, tuple[int, float]]]) -> tuple[list[int], int]:
    start, room = [SKIP] * len(options), case.capacity
    starving = np.flatnonzero(case.flags & MUST_SCHEDULE)
    for i in sorted(starving, key=lambda i: (-case.pending[i], i)):
        keeps_kv = case.flags[i] & RESIDENT_KV and options[i][KV][0] <= room
        choice = KV if COMPACT not in options[i] or keeps_kv else COMPACT
        if options[i][choice][0] <= room:
            start[i] = choice
            room -= options[i][choice][0]
    return start, room


def best_alone(option: dict[int, tuple[int, float]], start: int, room: int) -> int:
    if option[KV][0] - option[start][0] <= room:
        return KV
    return COMPACT if start == SKIP and COMPACT in option and option[COMPACT][0] <= room else start


def density(gain: float, units: int) -> np.float32:
    return np.float32(gain) / np.float32(units)


def fill(case: Case, options: list[dict[int, tuple[int, float]]], start: list[int], room: int) -> list[int]:
    choices, entries = list(start), []
    for i, option in enumerate(options):
        (kv, kv_gain), (compact, compact_gain) = option[KV], option.get(COMPACT, (10**9, -1.0))
        before_upgrade = np.float32(np.inf)
        if choices[i] == SKIP:
            possible = compact <= room and compact_gain >= 0
            if not possible or (kv <= room and density(compact_gain, compact) <= density(kv_gain, kv)):
                entries.append((-density(kv_gain, kv), 2 * i, kv, SKIP, KV))
                continue
            before_upgrade = density(compact_gain, compact)
            entries.append((-before_upgrade, 2 * i, compact, SKIP, COMPACT))
        if choices[i] != KV and compact < kv <= room + (compact if choices[i] == COMPACT else 0):
            upgrade = min(before_upgrade, density(kv_gain - compact_gain, kv - compact))
            entries.append((-upgrade, 2 * i + 1, kv - compact, COMPACT, KV))
    for _, entry_id, units, before, after in sorted(entries):
        if choices[entry_id // 2] == before and units <= room:
            choices[entry_id // 2] = after
            room -= units
    return choices


def optimum(case: Case) -> float:
    """Exact, by dynamic programming over units."""
    best = np.zeros(case.capacity + 1)
    for option in case.options():
        without = best.copy()
        for choice in (COMPACT, KV):
            units, gain = option.get(choice, (case.capacity + 1, 0.0))
            if units <= case.capacity:
                np.maximum(best[units:], without[: len(without) - units] + gain, out=best[units:])
    return float(best[-1])


def enumerated_optimum(case: Case) -> float:
    totals = (
        map(sum, zip(*picked, strict=True)) for picked in itertools.product(*(o.values() for o in case.options()))
    )
    return max(gain for units, gain in totals if units <= case.capacity)


def fractional_bound(case: Case) -> float:
    """The linear relaxation's optimum: take hull steps by density, the last one in part."""
    steps = []
    for option in case.options():
        (kv, kv_gain), (compact, compact_gain) = option[KV], option.get(COMPACT, (1, -1.0))
        if compact_gain * kv > kv_gain * compact:
            steps += [(compact_gain / compact, compact), ((kv_gain - compact_gain) / (kv - compact), kv - compact)]
        else:
            steps.append((kv_gain / kv, kv))
    value, room = 0.0, float(case.capacity)
    for density, units in sorted(steps, reverse=True):
        taken = min(room, units)
        value += density * taken
        room -= taken
    return value


# Against the oracles


def test_choices_equal_the_sorted_twin_bit_by_bit() -> None:
    rng = np.random.default_rng(1)
    for _ in range(400):
        n = int(rng.choice([1, 3, 20, 100, 400, 1500]))
        random = random_case(rng, n, float(rng.uniform(0.01, 1.0)), starving=float(rng.choice([0, 0.05, 0.3])))
        choices, value, units = random.solve()
        options = random.options()
        assert choices == sorted_greedy(random)
        assert units == sum(o[c][0] for o, c in zip(options, choices, strict=True)) <= random.capacity
        assert value == pytest.approx(sum(o[c][1] for o, c in zip(options, choices, strict=True)))


def test_value_is_at_least_half_of_the_optimum_in_every_case(record_property: Callable[[str, object], None]) -> None:
    rng = np.random.default_rng(2)
    ratios = []
    for _ in range(10_000):
        random = random_case(rng, int(rng.integers(1, 15)), float(rng.uniform(0.05, 0.9)))
        best = optimum(random)
        if len(random.units) <= 5:
            assert best == enumerated_optimum(random)
        if best > 0:
            ratios.append(random.solve()[1] / best)
    record_property("mean_ratio_to_optimum", float(np.mean(ratios)))
    assert min(ratios) >= 0.5
    assert max(ratios) <= 1.0
    assert np.mean(ratios) >= 0.95


def test_thousands_of_candidates_come_close_to_the_fractional_bound() -> None:
    rng = np.random.default_rng(3)
    for tight in (0.05, 0.3, 0.7):
        random = random_case(rng, 4000, tight)
        _, value, _ = random.solve()
        assert 0.99 * fractional_bound(random) <= value <= fractional_bound(random) * (1 + 1e-12)


def test_twin_agrees_when_one_big_misfit_stands_amid_nearly_equal_densities() -> None:
    """Nothing -> compact and compact -> kv share their leading bits, and all but the big one still fit behind it."""
    rng = np.random.default_rng(5)
    for compact_ratio, size in ((0.5, 1.8), (0.75, 1.0)) * 100:
        n, alpha = 200, 1 / 256
        units = 2 * rng.integers(1, 20, n)
        capacity = int(units.sum() * rng.uniform(1.0, 1.3))
        units[rng.integers(n)] = int(units.sum() * size)
        pending = n * alpha / (1 - compact_ratio) * units + units * rng.integers(0, 16, n) / 2**16
        crowd = case(pending.tolist(), units.tolist(), capacity, alpha=alpha, compact_ratio=compact_ratio)
        assert crowd.solve()[0] == sorted_greedy(crowd)


# Behaviour


def test_everything_is_kv_when_everything_fits() -> None:
    assert case([1, 2], [4, 6], 10).solve() == ([KV, KV], 3.0, 10)


def test_compact_places_twice_as_many() -> None:
    assert case([1, 1], [8, 8], 8).solve()[0] == [COMPACT, COMPACT]


def test_costly_compact_is_avoided() -> None:
    assert case([1, 1], [8, 8], 8, alpha=1.0).solve()[0] == [KV, SKIP]


def test_compact_is_never_chosen_where_it_is_no_smaller() -> None:
    assert case([1, 1], [8, 8], 8, compact_ratio=1.0).solve()[0] == [KV, SKIP]


def test_a_single_block_is_never_compact() -> None:
    assert case([1, 1], [2, 2], 2).solve()[0] == [KV, SKIP]


def test_smaller_requests_are_placed_after_a_misfit() -> None:
    assert case([9, 8, 1], [6, 6, 2], 8, compact_ratio=1.0).solve()[0] == [KV, SKIP, KV]


def test_one_big_request_beats_many_dense_small_ones() -> None:
    assert case([2, 100], [2, 102], 102, compact_ratio=1.0).solve()[0] == [SKIP, KV]


def test_what_the_one_big_request_leaves_is_filled() -> None:
    crowd = case([2, 99, 1, 0.125], [2, 100, 2, 1], 101, compact_ratio=1.0)
    assert crowd.solve()[0] == [SKIP, KV, SKIP, KV]


def test_missed_target_lowers_the_value() -> None:
    late = case([9, 1], [8, 8], 8, flags=[PAST_TARGET, 0], compact_ratio=1.0)
    assert late.solve()[0] == [SKIP, KV]
    late.decay = 0.5
    assert late.solve()[0] == [KV, SKIP]


def test_the_longest_starving_request_is_always_placed() -> None:
    rng = np.random.default_rng(4)
    for _ in range(500):
        random = random_case(rng, 30, 0.3, starving=0.4)
        options = random.options()
        smallest = [min(option[choice][0] for choice in option if choice != SKIP) for option in options]
        starving = [i for i in np.flatnonzero(random.flags & MUST_SCHEDULE) if smallest[i] <= random.capacity]
        if starving:
            oldest = max(starving, key=lambda i: (random.pending[i], -i))
            assert random.solve()[0][oldest] != SKIP


def test_no_request_waits_beyond_the_bound() -> None:
    """A big request among ever new small ones of higher density, all of which starve in turn."""
    limit, service = 10, 3  # steps until a request starves, steps that a placed one runs
    arrivals = {0: 64, **dict.fromkeys(range(1, 200), 8)}
    waiting: dict[int, int] = {0: 0}  # id -> step of arrival
    running: dict[int, int] = {}  # id -> steps left
    waited: dict[int, int] = {}
    for step in range(200):
        waiting |= {step: step}
        ids = sorted(waiting | running)
        pending = [step - waiting[i] + 1 if i in waiting else 1 for i in ids]
        flags = [MUST_SCHEDULE if i in waiting and step - waiting[i] >= limit else 0 for i in ids]
        flags = [f | (0 if i in waiting else RESIDENT_KV) for i, f in zip(ids, flags, strict=True)]
        units = [arrivals[i] for i in ids]
        choices = case(pending, units, 64, compact_ratio=1.0, flags=flags, keep=[20.0] * len(ids)).solve()[0]
        placed = {i for i, choice in zip(ids, choices, strict=True) if choice != SKIP}
        for i in placed & waiting.keys():
            waited[i] = step - waiting.pop(i)
            running[i] = service
        running = {i: left - (i in placed) for i, left in running.items() if left > (i in placed)}
    assert waited[0] <= limit + service
    assert max(waited.values()) <= limit + service * 3


def test_hysteresis_stops_two_requests_from_taking_turns() -> None:
    def switches(keep: float) -> int:
        resident, count, pending = 0, 0, [0.0, 0.0]
        for _ in range(50):
            pending = [p + 1 for p in pending]
            flags = [RESIDENT_KV if i == resident else 0 for i in range(2)]
            choices = case(pending, [8, 8], 8, compact_ratio=1.0, flags=flags, keep=[keep, keep]).solve()[0]
            placed = choices.index(KV)
            count += placed != resident
            resident, pending[placed] = placed, 0.0
        return count

    assert switches(keep=0.0) > 20
    assert switches(keep=10.0) <= 5


def test_a_resident_keeps_its_kind_unless_memory_is_worth_more_than_rebuilding() -> None:
    crowd = case([1, 1, 1], [8, 8, 8], 20, flags=[RESIDENT_KV, 0, 0], keep=[5.0, 0, 0])
    assert crowd.solve()[0][0] == KV
    crowd.keep[0] = 0.0
    crowd.capacity = 12
    assert crowd.solve()[0] == [COMPACT, COMPACT, COMPACT]


def test_a_compact_resident_may_become_kv_without_losing_its_bonus() -> None:
    _, value, _ = case([1, 1], [8, 8], 15, flags=[RESIDENT_COMPACT, 0], keep=[5.0, 0]).solve()
    assert value == 7.0


def test_kv_may_become_compact_and_keep_a_part_of_its_bonus() -> None:
    choices, value, _ = case([1, 1], [8, 8], 15, flags=[RESIDENT_KV, 0], keep=[4.0, 0], kept=0.75).solve()
    assert (choices, value) == ([KV, COMPACT], 6.0)  # the other gives in first
    choices, value, _ = case([1, 2], [8, 8], 8, flags=[RESIDENT_KV, 0], keep=[4.0, 0], kept=0.75).solve()
    assert (choices, value) == ([COMPACT, COMPACT], 6.0)


def test_candidates_of_unequal_length_are_refused() -> None:
    bad = case([1, 2], [4, 6], 10)
    bad.flags = bad.flags[:1]
    with pytest.raises(ValueError, match="one length"):
        bad.solve()
