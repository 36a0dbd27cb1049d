"""Blocks on their way to the host arrive as they were when they were handed over, whatever is written afterwards."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.tiers.move_thread import Ends
from worker.tiers.tier_moves import MoveEnd, Moves
from worker.tiers.write_behind import WriteBehind

NUM_BLOCKS, UNITS_PER_BLOCK = 6, 2


class Device:
    """Units that hold a number each, and a host that copies of blocks go to, by the move's id."""

    def __init__(self) -> None:
        self.units = np.zeros(NUM_BLOCKS * UNITS_PER_BLOCK, np.int64)
        self.host: dict[int, list[int]] = {}
        self.ends: Ends = queue.SimpleQueue()
        self.saves = WriteBehind(self.copy, len(self.units), self.ends)

    def copy(self, moves: Moves) -> None:
        for move_id, units in zip(moves.ids, moves.units, strict=True):
            self.host[move_id] = self.units[units].tolist()

    def moves(self, ids: list[int], blocks: list[int]) -> Moves:
        units = np.array([[UNITS_PER_BLOCK * b + i for i in range(UNITS_PER_BLOCK)] for b in blocks], np.int64)
        return Moves(ids, np.array(ids, np.int64), units, [b""] * len(ids), np.full(len(ids), -1, np.int64))

    def content(self, block: int) -> list[int]:
        return self.units[UNITS_PER_BLOCK * block : UNITS_PER_BLOCK * (block + 1)].tolist()

    def write(self, block: int, value: int) -> None:
        units = np.arange(UNITS_PER_BLOCK) + UNITS_PER_BLOCK * block
        self.saves.make_way(units)
        self.units[units] = value


@contextmanager
def open_device() -> Iterator[Device]:
    device = Device()
    try:
        yield device
    finally:
        device.saves.close()


def ended(device: Device) -> list[int]:
    found = []
    while not device.ends.empty():
        end = device.ends.get()
        assert isinstance(end, MoveEnd)
        assert end.is_done
        found.append(end.move_id)
    return sorted(found)


Writes = st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, NUM_BLOCKS - 1), min_size=1)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(Writes)
def test_every_copy_is_of_the_moment_when_it_was_handed_over(steps: list[tuple[bool, set[int]]]) -> None:
    expected: dict[int, list[int]] = {}
    with open_device() as device:
        on_their_way: set[int] = set()
        for number, (is_save, blocks) in enumerate(steps):
            if is_save:
                fresh = sorted(blocks - on_their_way)  # a block is saved once, until it is another's
                ids = [100 * number + b for b in fresh]
                for move_id, block in zip(ids, fresh, strict=True):
                    expected[move_id] = device.content(block)
                on_their_way |= blocks
                if fresh:
                    device.saves.put(device.moves(ids, fresh))
            else:
                for block in blocks:
                    device.write(block, number + 1)
                on_their_way -= blocks
        device.saves.close()
        assert device.host == expected
        assert ended(device) == sorted(expected)


def test_what_has_not_been_begun_is_copied_by_who_needs_the_memory() -> None:
    with open_device() as device:
        with device.saves._copying:  # the thread gets nowhere
            device.saves.put(device.moves([1], [0]))
            device.saves.put(device.moves([2], [1]))
            device.saves.make_way(np.array([8, 9]))  # nobody's: returns at once
            assert device.host == {}
        device.units[:] = 5
        device.saves.make_way(np.array([2]))
        assert set(device.host) == {1, 2}


def test_an_error_is_handed_on() -> None:
    device = Device()

    def fail(moves: Moves) -> None:
        raise OSError("no memory")

    device.saves._copy = fail
    device.saves.put(device.moves([1], [0]))
    error = device.ends.get(timeout=60)
    assert isinstance(error, OSError)
    with pytest.raises(OSError, match="no memory"):
        raise error


def test_a_block_that_is_saved_again_is_on_its_way_until_the_second_time_is_over() -> None:
    """The host dropped it in between. That the first copy is over is noted after the second was handed over."""
    with open_device() as device:
        device.write(0, 1)
        device.saves.put(device.moves([1], [0]))
        device.ends.get(timeout=5)
        device.saves._copying.acquire()  # the thread gets no further
        threading.Timer(0.05, device.saves._copying.release).start()
        device.saves.put(device.moves([2], [0]))
        device.write(0, 9)
        device.ends.get(timeout=5)
        assert device.host[2] == [1, 1]
