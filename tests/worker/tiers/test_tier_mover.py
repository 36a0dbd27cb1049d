"""What moves beside a step touches nothing that the step has yet to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from schedcore._core import MoveKind
from worker.batch.paged_pool import PagedPool
from worker.tiers.host_tier import HostTier
from worker.tiers.tier_mover import TierMover
from worker.tiers.tier_moves import MoveEnd

NUM_UNITS, UNITS_PER_BLOCK = 8, 2
LOAD, MARK = 1, 2  # ids of moves


@contextmanager
def open_mover(num_slots: int = 2) -> Iterator[TierMover]:
    """The device holds zeros, the host ones."""
    table = torch.zeros((1, 1, UNITS_PER_BLOCK, 1), dtype=torch.int32)
    pool = PagedPool(torch.zeros((NUM_UNITS, 1, 4, 8)), table, num_kv_heads=1, head_dim=8)
    host = HostTier(pool, UNITS_PER_BLOCK, num_slots)
    host.data.fill_(1)
    mover = TierMover(pool, host, None)
    try:
        yield mover
    finally:
        mover.close()


def plan_that_loads(
    units: list[int], *, projected_units: Sequence[int] = (), rounded_units: Sequence[int] = ()
) -> SimpleNamespace:
    return SimpleNamespace(
        num_saves=0,
        move_ids=np.array([LOAD], np.int32),
        move_kinds=np.array([MoveKind.LOAD], np.int32),
        move_slots=np.array([0], np.int32),
        move_units=np.array(units, np.int32),
        move_keys=np.zeros((1, 2), np.uint64),
        move_peers=np.array([-1], np.int32),
        projected_units=np.array(projected_units, np.int32),
        rounded_units=np.array(rounded_units, np.int32),
    )


def ended_so_far(mover: TierMover) -> list[int]:
    """Ids of moves, when all that the thread of loads was told is done."""
    mover._loader.put(lambda: [MoveEnd([MARK], True)])
    ended: list[int] = []
    while MARK not in ended:
        mover.wait(60)
        ended += [move_id for end in mover.take_ends() for move_id in end.move_ids]
    return ended[:-1]


def test_a_save_is_of_the_device_as_it_is_before_the_step_and_of_any_load_of_its_plan() -> None:
    plan = SimpleNamespace(
        num_saves=2,
        move_ids=np.array([5, 6, LOAD], np.int32),
        move_kinds=np.array([MoveKind.SAVE, MoveKind.SAVE, MoveKind.LOAD], np.int32),
        move_slots=np.array([2, 1, 0], np.int32),
        move_units=np.array([3, 0, 6, 7, 3, 0], np.int32),
        move_keys=np.zeros((3, 2), np.uint64),
        move_peers=np.array([-1, -1, -1], np.int32),
        projected_units=np.zeros(0, np.int32),
        rounded_units=np.zeros(0, np.int32),
    )
    with open_mover(num_slots=3) as mover:
        device, host = mover._pool.data, mover.host.data
        device[:] = torch.arange(10, 10 + NUM_UNITS, dtype=torch.float32)[:, None, None, None]
        mover.begin(plan)  # type: ignore[arg-type]
        assert sorted(ended_so_far(mover)) == [LOAD, 5, 6]
        assert host.flatten(2).mean(2).tolist() == [[1, 1], [16, 17], [13, 10]]
        assert device.flatten(1).mean(1).tolist() == [1, 11, 12, 1, 14, 15, 16, 17]


@pytest.mark.parametrize("change", ["projected_units", "rounded_units"])
def test_a_load_into_units_that_the_step_changes_first_begins_when_the_step_is_over(change: str) -> None:
    with open_mover() as mover:
        mover.begin(plan_that_loads([2, 5], **{change: [4, 5]}))  # type: ignore[arg-type]
        assert ended_so_far(mover) == []
        assert mover._pool.data.sum() == 0
        mover.finish_step()
        assert ended_so_far(mover) == [LOAD]
        assert mover._pool.data.flatten(1).mean(1).tolist() == [0, 0, 1, 0, 0, 1, 0, 0]
        mover.finish_step()
        assert ended_so_far(mover) == []


def test_a_load_into_other_units_does_not_wait_for_the_step() -> None:
    with open_mover() as mover:
        mover.begin(plan_that_loads([2, 5], projected_units=[4, 6]))  # type: ignore[arg-type]
        assert ended_so_far(mover) == [LOAD]
        assert mover._pool.data.flatten(1).mean(1).tolist() == [0, 0, 1, 0, 0, 1, 0, 0]
