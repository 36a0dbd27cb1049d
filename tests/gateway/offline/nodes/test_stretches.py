"""Stretches of an order over nodes that come and go: every position once, whatever happens."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.offline.nodes.stretches import Stretches


def grouped(*sizes: int) -> bytes:
    """Positions in groups: within one they share something, at its beginning nothing."""
    return b"".join(bytes([0] + [3] * (size - 1)) for size in sizes)


def dealt(stretches: Stretches, names: list[str]) -> dict[str, list[int]]:
    """In turns, one each, to the end."""
    found: dict[str, list[int]] = {name: [] for name in names}
    while len(stretches):
        for name in names:
            found[name] += stretches.take(name, 1)
    return found


def num_runs(positions: list[int]) -> int:
    return sum(1 for _ in itertools.groupby(enumerate(sorted(positions)), key=lambda pair: pair[1] - pair[0]))


def test_without_nodes_the_order_is_kept_and_what_comes_back_goes_first() -> None:
    stretches = Stretches(6)
    assert stretches.take(None, 3) == [0, 1, 2]
    stretches.put_back([1], None)
    stretches.put_back([0], None)
    assert [stretches.take(None, 2), stretches.take(None, 9), stretches.take(None, 1)] == [[0, 1], [3, 4, 5], []]


def test_nodes_of_equal_speed_have_equal_parts_and_nobody_steals() -> None:
    stretches = Stretches(30)
    stretches.set_nodes(["a", "b", "c"])
    assert dealt(stretches, ["a", "b", "c"]) == {
        "a": list(range(10)),
        "b": list(range(10, 20)),
        "c": list(range(20, 30)),
    }


def test_groups_stay_whole() -> None:
    stretches = Stretches(90, grouped(22, 30, 38))
    stretches.set_nodes(["a", "b", "c"])
    firsts = [stretches.take(name, 1)[0] for name in ("a", "b", "c")]
    assert firsts == [0, 22, 52]


def test_who_has_nothing_steals_from_the_far_end_of_the_longest() -> None:
    stretches = Stretches(100, grouped(30, 35, 35))
    stretches.set_nodes(["a"])
    assert stretches.take("a", 1) == [0]
    stretches.set_nodes(["a", "b"])
    assert stretches.take("b", 1) == [65]  # half would be 50: within a group
    assert stretches.take("b", 99) == list(range(66, 100))
    assert stretches.take("b", 1) == [30]
    assert stretches.take("a", 99) == list(range(1, 30))


def test_one_group_is_divided_when_it_is_all_there_is() -> None:
    stretches = Stretches(8, grouped(8))
    stretches.set_nodes(["a", "b"])
    assert [stretches.take("a", 4), stretches.take("b", 1)] == [[0, 1, 2, 3], [4]]
    assert [stretches.take("a", 8), stretches.take("b", 8)] == [[6, 7], [5]]


def test_what_a_node_leaves_behind_is_taken_by_others() -> None:
    stretches = Stretches(40)
    stretches.set_nodes(["a", "b"])
    taken = stretches.take("a", 5)
    assert stretches.take("b", 20) == list(range(20, 40))
    stretches.set_nodes(["b"])
    stretches.put_back(taken, "a")  # what it had fails after it is gone
    assert stretches.take("b", 40) == list(range(20))


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(0, 300), data=st.data())
def test_every_position_ends_once_whatever_happens(seed: int, length: int, data: st.DataObject) -> None:
    chance = random.Random(seed)
    shared = bytes(chance.choice((0, 0, 1, 5)) for _ in range(length)) if chance.random() < 0.8 else b""
    stretches, names = Stretches(length, shared), ["a", "b", "c", "d", "e"]
    up: list[str] = []
    open_at: dict[int, str | None] = {}
    ended: list[int] = []
    for _ in range(data.draw(st.integers(0, 120))):
        event = chance.random()
        node = chance.choice(up) if up else None
        if event < 0.15:
            up = chance.sample(names, chance.randint(0, 5))
            stretches.set_nodes(up)
        elif event < 0.6:
            taken = stretches.take(node, chance.choice((1, 1, 3, 64)))
            assert taken or not len(stretches)
            open_at |= dict.fromkeys(taken, node)
        elif event < 0.8 and open_at:  # also of nodes that are gone
            back = chance.sample(sorted(open_at), min(len(open_at), chance.randint(1, 5)))
            for position in back:
                stretches.put_back([position], open_at.pop(position))
        elif open_at:
            position = chance.choice(sorted(open_at))
            del open_at[position]
            ended.append(position)
        assert len(stretches) + len(open_at) + len(ended) == length
    stretches.set_nodes(up)
    while taken := stretches.take(up[0] if up else None, 7):
        ended += taken
    assert sorted([*ended, *open_at]) == list(range(length))


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    speeds=st.lists(st.integers(1, 8), min_size=2, max_size=5),
)
def test_nobody_is_without_rows_while_any_are_left_and_few_groups_are_divided(
    sizes: list[int], speeds: list[int]
) -> None:
    names = [f"n{i}" for i in range(len(speeds))]
    shared = grouped(*sizes)
    stretches = Stretches(len(shared), shared)
    stretches.set_nodes(names)
    of: dict[str, list[int]] = {name: [] for name in names}
    num_steals = 0
    while len(stretches):
        for name, speed in zip(names, speeds, strict=True):
            for _ in range(speed):
                num_steals += not stretches.num_of(name)
                taken = stretches.take(name, 1)
                assert taken or not len(stretches)
                of[name] += taken
    assert sorted(itertools.chain(*of.values())) == list(range(len(shared)))
    group = [i for i, size in enumerate(sizes) for _ in range(size)]
    num_parts = sum(len({group[position] for position in positions}) for positions in of.values())
    assert num_parts <= len(sizes) + num_steals  # each taking of a stretch divides one group at most
    assert sum(map(num_runs, of.values())) <= num_steals + len(names)
