"""Carries out a plan's moves between tiers (cpp/core/base/batch_plan.h), beside the steps.

Each kind has a thread of its own, so that none waits for another; copying and hashing release the interpreter lock.

- Saves read the device as it was before the step. On CPU they are over before it begins; on CUDA they are gathered on
  the device, in the order of the compute stream, and leave it afterwards.
- Step loads come layer group by layer group. The step waits for each where it first reads it (ops.wait_for_units()).
- Loads, stores and fetches take their time; those from peers most (peer_pulls.py). A load may go to units that were
  another block's until this plan: while its step still projects what is in them, the load waits for the step's end.
- Uncached tokens are loaded by the step that needs them (worker/forms/layer_copies.py).
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from functools import partial

import numpy as np

from schedcore._core import BatchPlan, MoveKind
from schedcore.tiers.disk_tier import DiskTier
from worker import ops
from worker.batch.paged_pool import ALL_LANDED, PagedPool
from worker.tiers.host_tier import HostTier
from worker.tiers.move_thread import Ends, MoveThread
from worker.tiers.peer_pulls import PeerPulls
from worker.tiers.tier_copies import CpuCopies, CudaCopies, TierCopies
from worker.tiers.tier_moves import MoveEnd, Moves, moves_by_kind, saves_of

PIECE_BYTES = 1 << 20  # that are loaded before the blocks among them are reported


class TierMover:
    """begin(), finish_step(), take_ends() and wait() are the engine loop's."""

    def __init__(self, pool: PagedPool, host: HostTier, disk: DiskTier | None) -> None:
        self.pulls: PeerPulls | None = None  # set once, before the first plan; None: no plan has fetches from peers
        self._pool, self.host, self.disk = pool, host, disk
        self._ends: Ends = queue.SimpleQueue()
        self._held: MoveEnd | BaseException | None = None
        self._copies: TierCopies = (CudaCopies if pool.data.is_cuda else CpuCopies)(pool, host, self._ends)
        self._piece_size = max(1, PIECE_BYTES // host.block_bytes)
        self._loader = MoveThread("tier loads", self._ends)
        self._lander = MoveThread("tier step loads", self._ends)
        self._writer = MoveThread("disk writer", self._ends)
        self._reader = MoveThread("disk reader", self._ends)
        self._late_loads: Moves | None = None  # that begin when the step is over
        self._is_landing = False
        self._landing_error: BaseException | None = None

    def begin(self, plan: BatchPlan) -> None:
        """Call before the plan is executed. Saves will read the device as it is now, whatever the step writes."""
        if len(plan.move_ids) == 0:  # as in nearly every step
            return
        if plan.num_saves > 0:
            self._copies.begin_saves(saves_of(plan))
        if plan.num_saves < len(plan.move_ids):
            self._begin_others(plan)

    def _begin_others(self, plan: BatchPlan) -> None:
        moves = moves_by_kind(plan)
        if MoveKind.STEP_LOAD in moves:
            self._begin_landing(moves[MoveKind.STEP_LOAD])
        if MoveKind.LOAD in moves:
            self._begin_or_put_off(moves[MoveKind.LOAD], plan)
        if MoveKind.STORE in moves:
            self._writer.put(partial(self._store, moves[MoveKind.STORE]))
        if MoveKind.FETCH in moves:
            self._begin_fetches(moves[MoveKind.FETCH])

    def finish_step(self) -> None:
        """Call when a plan has been executed, before its tokens are used. Raises what kept units from landing."""
        if self._late_loads is not None:
            self._begin_loads(self._late_loads)
            self._late_loads = None
        if not self._is_landing:
            return
        ops.wait_for_units(self._pool, self._pool.num_groups - 1)
        ops.land(self._pool, ALL_LANDED)
        self._is_landing = False
        if self._landing_error is not None:
            raise self._landing_error

    def take_ends(self) -> list[MoveEnd]:
        """Moves that are over, in order. Raises what a thread raised."""
        ends: list[MoveEnd] = []
        while self._held is not None or not self._ends.empty():  # asking costs less than being told by an exception
            end = self._held if self._held is not None else self._ends.get_nowait()
            self._held = None
            if isinstance(end, BaseException):
                raise end
            ends.append(end)
        return ends

    def wait(self, seconds: float) -> None:
        """Until a move is over, at most so long."""
        if self._held is None:
            try:
                self._held = self._ends.get(timeout=seconds)
            except queue.Empty:
                return

    def close(self) -> None:
        """Ends what was begun, then the threads."""
        if self.pulls is not None:
            self.pulls.close()
        self._copies.close()
        for thread in (self._loader, self._lander, self._writer, self._reader):
            thread.close()
        if self._pool.arrivals.copy_engine is not None:
            self._pool.arrivals.copy_engine.close()
        if self.disk is not None:
            self.disk.close()

    def _begin_or_put_off(self, moves: Moves, plan: BatchPlan) -> None:
        if np.isin(moves.units, np.concatenate((plan.projected_units, plan.rounded_units))).any():
            self._late_loads = moves
        else:
            self._begin_loads(moves)

    def _begin_loads(self, moves: Moves) -> None:
        self._loader.put(partial(self._load, moves, self._copies.fence()))

    def _begin_fetches(self, moves: Moves) -> None:
        for peer, fetched in moves.by_peer():
            if peer < 0:
                self._reader.put(partial(self._fetch, fetched))
            else:
                assert self.pulls is not None
                self.pulls.begin(fetched, peer, self._ends)

    # ---- tasks of the threads ----

    def _begin_landing(self, moves: Moves) -> None:
        self._is_landing = True
        self._pool.arrivals.events.clear()
        ops.land(self._pool, 0)
        self._lander.put(partial(self._land, moves, self._copies.fence()))

    def _land(self, moves: Moves, fence: object) -> list[MoveEnd]:
        try:
            for group in range(self._pool.num_groups):
                self._copies.load_group(moves, group, fence)
                ops.land(self._pool, group + 1)
            self._copies.finish_groups()
        except BaseException as error:
            self._landing_error = error
            ops.land(self._pool, ALL_LANDED)  # the step ends, and its tokens are not used
            raise
        return [moves.end()]

    def _load(self, moves: Moves, fence: object) -> Iterator[MoveEnd]:
        for piece in moves.pieces(self._piece_size):
            self._copies.load(piece, fence)
            yield piece.end()

    def _store(self, moves: Moves) -> Iterator[MoveEnd]:
        assert self.disk is not None
        for move_id, slot, key in zip(moves.ids, moves.slots.tolist(), moves.keys, strict=True):
            dropped = self.disk.write(key, self.host.slot_bytes(slot))
            yield MoveEnd([move_id], dropped is not None, dropped)

    def _fetch(self, moves: Moves) -> Iterator[MoveEnd]:
        assert self.disk is not None
        for move_id, slot, key in zip(moves.ids, moves.slots.tolist(), moves.keys, strict=True):
            yield MoveEnd([move_id], self.disk.read(key, self.host.slot_bytes(slot)))
