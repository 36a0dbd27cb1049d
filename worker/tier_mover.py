"""Carries out a plan's moves between tiers (cpp/core/batch_plan.h), beside the steps.

Saves read the device before the step writes. On CPU the copy itself is made there and then: it would take the same
memory bandwidth from the step on another thread, and costs well under a hundredth of computing what it copies. On CUDA
the blocks are gathered on the device, in the order of the compute stream, and leave it on a stream of their own.
Loads, stores and fetches have a thread each, so that none waits for another; copying and hashing release the GIL.
"""

from __future__ import annotations

import enum
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from schedcore._core import BatchPlan
from worker.disk_tier import DiskTier, Key
from worker.host_tier import HostTier
from worker.unit_pool import UnitPool

CLOSE_SECONDS = 10.0  # that what was begun may take when the engine stops


class MoveKind(enum.IntEnum):
    """cpp/core/batch_plan.h."""

    SAVE = 0
    LOAD = 1
    STORE = 2
    FETCH = 3


@dataclass(frozen=True, slots=True)
class MoveEnd:
    """A move is over; stores may have made the disk drop other blocks before."""

    move_id: int
    is_done: bool
    dropped: list[Key] | None = None


@dataclass(frozen=True, slots=True)
class _Move:
    move_id: int
    slot: int
    units: Tensor | None  # int64, on the device
    key: Key


class TierMover:
    """begin() and take_ends() are the engine loop's; the rest happens on threads of its own."""

    def __init__(self, pool: UnitPool, host: HostTier, disk: DiskTier | None) -> None:
        self._pool, self.host, self.disk = pool, host, disk
        self._ends: queue.SimpleQueue[MoveEnd | BaseException] = queue.SimpleQueue()
        self._held: MoveEnd | BaseException | None = None
        self._stream: torch.cuda.Stream | None = None
        if pool.data.is_cuda:
            self._stream = torch.cuda.Stream(pool.data.device)  # type: ignore[no-untyped-call]
        self._copies = _Worker("tier copies", self._ends)
        self._writer = _Worker("disk writer", self._ends)
        self._reader = _Worker("disk reader", self._ends)

    def begin(self, plan: BatchPlan) -> None:
        """Call before the plan is executed. Saves have read the device when it returns, or will in stream order."""
        kinds = plan.move_kinds
        if len(kinds) == 0:
            return
        moves = self._moves(plan)
        fence = None
        if self._stream is not None:
            self._begin_cuda_saves([m for m, k in zip(moves, kinds, strict=True) if k == MoveKind.SAVE])
            fence = torch.cuda.current_stream(self._pool.data.device).record_event()
        for kind, move in zip(kinds.tolist(), moves, strict=True):
            if kind == MoveKind.SAVE and self._stream is None:
                self._save(move)
        for kind, move in zip(kinds.tolist(), moves, strict=True):
            if kind == MoveKind.LOAD:
                self._copies.put(partial(self._load, move, fence))
            elif kind == MoveKind.STORE:
                self._writer.put(partial(self._store, move))
            elif kind == MoveKind.FETCH:
                self._reader.put(partial(self._fetch, move))

    def take_ends(self) -> list[MoveEnd]:
        """Moves that are over, in order. Raises what a thread raised."""
        ends: list[MoveEnd] = []
        while True:
            try:
                end = self._held if self._held is not None else self._ends.get_nowait()
            except queue.Empty:
                return ends
            self._held = None
            if isinstance(end, BaseException):
                raise end
            ends.append(end)

    def wait(self, seconds: float) -> None:
        """Until a move is over, at most so long."""
        if self._held is None:
            try:
                self._held = self._ends.get(timeout=seconds)
            except queue.Empty:
                return

    def close(self) -> None:
        """Ends what was begun, then the threads."""
        for worker in (self._copies, self._writer, self._reader):
            worker.close()
        if self.disk is not None:
            self.disk.close()

    # ---- one block each ----

    def _moves(self, plan: BatchPlan) -> list[_Move]:
        units: npt.NDArray[np.int64] = plan.move_units.reshape(len(plan.move_ids), -1).astype(np.int64)
        on_device = torch.from_numpy(units).to(self._pool.data.device)
        keys = plan.move_keys
        return [
            _Move(move_id, slot, on_device[i], keys[i].tobytes())
            for i, (move_id, slot) in enumerate(zip(plan.move_ids.tolist(), plan.move_slots.tolist(), strict=True))
        ]

    def _save(self, move: _Move) -> None:
        assert move.units is not None
        torch.index_select(self._pool.data, 0, move.units, out=self.host.data[move.slot])
        self._ends.put(MoveEnd(move.move_id, True))

    def _begin_cuda_saves(self, moves: list[_Move]) -> None:
        if not moves:
            return
        units = torch.cat([move.units for move in moves if move.units is not None])
        staged = self._pool.data.index_select(0, units).view(len(moves), *self.host.data.shape[1:])
        event = torch.cuda.current_stream(self._pool.data.device).record_event()
        self._copies.put(partial(self._leave_device, moves, staged, event))

    def _leave_device(self, moves: list[_Move], staged: Tensor, event: torch.cuda.Event) -> list[MoveEnd]:
        assert self._stream is not None
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(event)
            for i, move in enumerate(moves):
                self.host.data[move.slot].copy_(staged[i], non_blocking=True)
            staged.record_stream(self._stream)
        self._stream.synchronize()
        return [MoveEnd(move.move_id, True) for move in moves]

    def _load(self, move: _Move, fence: torch.cuda.Event | None) -> list[MoveEnd]:
        assert move.units is not None
        block = self.host.data[move.slot]
        if self._stream is None:
            self._pool.data.index_copy_(0, move.units, block)
        else:
            with torch.cuda.stream(self._stream):
                if fence is not None:
                    self._stream.wait_event(fence)
                self._pool.data.index_copy_(0, move.units, block.to(self._pool.data.device, non_blocking=True))
            self._stream.synchronize()
        return [MoveEnd(move.move_id, True)]

    def _store(self, move: _Move) -> list[MoveEnd]:
        assert self.disk is not None
        dropped = self.disk.write(move.key, self.host.slot_bytes(move.slot))
        return [MoveEnd(move.move_id, dropped is not None, dropped)]

    def _fetch(self, move: _Move) -> list[MoveEnd]:
        assert self.disk is not None
        return [MoveEnd(move.move_id, self.disk.read(move.key, self.host.slot_bytes(move.slot)))]


class _Worker:
    """A thread that carries out what it is given, in order. What raises is handed on as it is."""

    def __init__(self, name: str, ends: queue.SimpleQueue[MoveEnd | BaseException]) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], list[MoveEnd]] | None] = queue.SimpleQueue()
        self._ends = ends
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, task: Callable[[], list[MoveEnd]]) -> None:
        self._tasks.put(task)

    def close(self) -> None:
        self._tasks.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        with torch.inference_mode():
            while (task := self._tasks.get()) is not None:
                try:
                    for end in task():
                        self._ends.put(end)
                except BaseException as error:
                    self._ends.put(error)
                    return
