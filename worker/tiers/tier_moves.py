"""Moves between memory tiers as a plan names them (cpp/core/base/batch_plan.h), and what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schedcore._core import BatchPlan
from schedcore.tiers.block_digest import Key

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class MoveEnd:
    """Some moves are over; stores may have made the disk drop other blocks before."""

    move_ids: list[int]
    is_done: bool
    dropped: list[Key] | None = None


@dataclass(frozen=True, slots=True)
class Saves:
    """The saves of a plan, one block each: nearly every step of some configurations has some."""

    ids: list[int]
    slots: Int32  # [n], on the host; as long as the plan
    units: Int32  # [n * units_per_block], on the device; likewise

    def end(self) -> MoveEnd:
        return MoveEnd(self.ids, True)


@dataclass(frozen=True, slots=True)
class Moves:
    """Some moves of one kind, one block each."""

    ids: list[int]
    slots: Int64  # [n], on the host
    units: Int64  # [n, units_per_block], on the device; of loads
    keys: list[Key]
    peers: Int64  # [n], whom fetches are from; -1: the disk

    def __len__(self) -> int:
        return len(self.ids)

    def pieces(self, size: int) -> Iterator[Moves]:
        """The same, at most `size` at a time."""
        for i in range(0, len(self), size):
            part = slice(i, i + size)
            yield Moves(self.ids[part], self.slots[part], self.units[part], self.keys[part], self.peers[part])

    def by_peer(self) -> Iterator[tuple[int, Moves]]:
        """The same, those of each peer together."""
        for peer in np.unique(self.peers).tolist():
            chosen = np.flatnonzero(self.peers == peer)
            ids, keys = [self.ids[i] for i in chosen], [self.keys[i] for i in chosen]
            yield peer, Moves(ids, self.slots[chosen], self.units[chosen], keys, self.peers[chosen])

    def end(self) -> MoveEnd:
        return MoveEnd(self.ids, True)


def saves_of(plan: BatchPlan) -> Saves:
    num_saves = plan.num_saves
    slots, units = plan.move_slots[:num_saves], plan.move_units
    return Saves(plan.move_ids[:num_saves].tolist(), slots, units[: len(units) // len(plan.move_ids) * num_saves])


def moves_by_kind(plan: BatchPlan) -> dict[int, Moves]:
    """Those that are no saves. Copies: the plan's arrays are its scheduler's."""
    kinds, ids = plan.move_kinds, plan.move_ids
    slots = plan.move_slots.astype(np.int64)
    units = plan.move_units.reshape(len(ids), -1).astype(np.int64)
    keys = plan.move_keys
    peers = plan.move_peers.astype(np.int64)
    found = {}
    for kind in np.unique(kinds[plan.num_saves :]).tolist():
        chosen = np.flatnonzero(kinds == kind)
        names = [keys[i].tobytes() for i in chosen]
        found[kind] = Moves(ids[chosen].tolist(), slots[chosen], units[chosen], names, peers[chosen])
    return found


def key_array(keys: Sequence[Key]) -> UInt64:
    """[n, 2]"""
    return np.frombuffer(b"".join(keys), np.uint64).reshape(-1, 2)
