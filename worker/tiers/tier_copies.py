"""Blocks between the device's pool and the host's slots, whole or one layer group of them."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from worker import ops
from worker.batch.paged_pool import NUM_VECTOR_KINDS, PagedPool
from worker.batch.staging import to_device
from worker.tiers.host_tier import HostTier
from worker.tiers.move_thread import Ends, MoveThread
from worker.tiers.tier_moves import Int64, MoveEnd, Moves, Saves


class TierCopies(Protocol):
    """The first two and close() are the engine loop's, the others those of the threads that load."""

    def begin_saves(self, saves: Saves) -> None:
        """Device -> host, as the device is after what it was told so far. Ends are reported."""

    def fence(self) -> object:
        """For loads: what the device was told so far comes before them."""

    def load(self, moves: Moves, fence: object) -> None:
        """Host -> device; done when it returns."""

    def load_group(self, moves: Moves, group: int, fence: object) -> None:
        """The same of one layer group; done for whoever waits for the group by ops.wait_for_units()."""

    def finish_groups(self) -> None:
        """Until what load_group() began on this thread is done."""

    def close(self) -> None:
        """Ends the saves that were begun."""


class CpuCopies:
    """Saves are made at once, by the kernels' threads: a block's bytes are few beside the arithmetic that made them,
    and another thread would take a core from a kernel whose other threads then wait.
    """

    def __init__(self, pool: PagedPool, host: HostTier, ends: Ends) -> None:
        self._pool, self._host = pool.data, host.data.view(-1, *pool.data.shape[1:])  # units, one behind the other
        self._units_per_block = host.units_per_block
        self._save = ops.make_block_saver(host.data, pool.data)
        self._ends = ends

    def begin_saves(self, saves: Saves) -> None:
        self._save(saves.slots, saves.units)
        self._ends.put(saves.end())

    def fence(self) -> None:
        return None

    def load(self, moves: Moves, fence: object) -> None:
        self._load(moves, slice(None))

    def load_group(self, moves: Moves, group: int, fence: object) -> None:
        self._load(moves, _of_group(group))

    def finish_groups(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _load(self, moves: Moves, units: slice) -> None:
        to, source = _indices(moves.units[:, units]), _indices(self._host_units(moves)[:, units])
        ops.unit_copy(self._pool, self._host, to, source, is_alone=True)

    def _host_units(self, moves: Moves) -> Int64:
        """[n, units_per_block], where the units of the moves are among all of the host's."""
        return moves.slots[:, None] * self._units_per_block + np.arange(self._units_per_block)


class CudaCopies:
    """What leaves is gathered on the device; what comes lands in a buffer there, then in its units.

    A stream for each of the three, so that what a step waits for is behind nothing else.
    """

    def __init__(self, pool: PagedPool, host: HostTier, ends: Ends) -> None:
        self._pool, self._host, self._device = pool, host, pool.data.device
        self._saving, self._loading, self._landing = (
            torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            for _ in range(3)
        )
        self._sender = MoveThread("tier saves", ends)

    def begin_saves(self, saves: Saves) -> None:
        units = to_device(saves.units.astype(np.int64), self._device)
        gathered = self._pool.data.index_select(0, units).view(len(saves.ids), *self._host.data.shape[1:])
        self._sender.put(partial(self._send, saves.slots.tolist(), gathered, self.fence(), saves.end()))

    def fence(self) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.current_stream(self._device).record_event()
        return event

    def load(self, moves: Moves, fence: object) -> None:
        self._scatter(moves, slice(None), fence, self._loading)
        self._loading.synchronize()

    def load_group(self, moves: Moves, group: int, fence: object) -> None:
        self._pool.arrivals.events.append(self._scatter(moves, _of_group(group), fence, self._landing))

    def finish_groups(self) -> None:
        self._landing.synchronize()

    def close(self) -> None:
        self._sender.close()

    def _send(self, slots: list[int], gathered: Tensor, event: torch.cuda.Event, end: MoveEnd) -> list[MoveEnd]:
        with torch.cuda.stream(self._saving):
            self._saving.wait_event(event)
            for i, slot in enumerate(slots):
                self._host.data[slot].copy_(gathered[i], non_blocking=True)
            gathered.record_stream(self._saving)
        self._saving.synchronize()
        return [end]

    def _scatter(self, moves: Moves, units: slice, fence: object, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """These units of the blocks, host -> device; queued, and done with the event."""
        assert isinstance(fence, torch.cuda.Event)
        with torch.cuda.stream(stream):
            stream.wait_event(fence)
            sources = [self._host.data[slot, units] for slot in moves.slots.tolist()]
            landed = torch.empty((len(moves), *sources[0].shape), dtype=sources[0].dtype, device=self._device)
            for to, source in zip(landed, sources, strict=True):
                to.copy_(source, non_blocking=True)
            places = to_device(moves.units[:, units].flatten(), self._device)
            self._pool.data.index_copy_(0, places, landed.flatten(0, 1))
            event: torch.cuda.Event = stream.record_event()
            return event


def _of_group(group: int) -> slice:
    """Of a block's units: they come in the order of the groups."""
    return slice(NUM_VECTOR_KINDS * group, NUM_VECTOR_KINDS * (group + 1))


def _indices(units: Int64) -> Tensor:
    return torch.from_numpy(units.astype(np.int32).ravel())
