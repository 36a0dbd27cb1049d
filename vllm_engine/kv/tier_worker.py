"""The workers' side: carries out a step's moves. Copies are the step's; the disk is written and read beside it."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from schedcore.tiers.disk_tier import DiskTier
from vllm_engine.kv.host_memory import Fence, HostMemory
from vllm_engine.kv.step_moves import Key, Opened, StepMoves, TierReport

logger = logging.getLogger(__name__)


class _End(NamedTuple):
    move_id: int
    is_done: bool
    dropped: list[Key]


class TierWorker:
    """One thread's; the disk's two threads are its own."""

    def __init__(self, host: HostMemory, disk: DiskTier | None) -> None:
        self._host, self._disk = host, disk
        on_disk = set(disk.all_keys()) if disk is not None else set()
        self._opened: Opened | None = Opened(on_disk, host.measure_bytes_per_second())
        self._ends: queue.SimpleQueue[_End] = queue.SimpleQueue()
        self._writer = ThreadPoolExecutor(1, "disk writer")
        self._reader = ThreadPoolExecutor(1, "disk reader")

    def begin(self, moves: StepMoves) -> None:
        """Before anything of the step is written to the device."""
        self._host.save(moves.saves)
        if not moves.stores and not moves.fetches:
            return
        fence = self._host.fence()
        for move in moves.stores:
            self._writer.submit(self._carry_out, partial(self._store, *move), move[0], fence)
        for move in moves.fetches:
            self._reader.submit(self._carry_out, partial(self._fetch, *move), move[0], fence)

    def load(self, moves: StepMoves) -> None:
        """Before the step reads."""
        self._host.load(moves.loads)

    def take_report(self) -> TierReport | None:
        """Since the last one; None if there is nothing to say."""
        report = TierReport(opened=self._opened, disk_bytes=0 if self._disk is None else self._disk.num_bytes)
        self._opened = None
        while not self._ends.empty():
            end = self._ends.get()
            report.num_ended[end.move_id] = 1
            report.dropped.update(end.dropped)
            if not end.is_done:
                report.failed.add(end.move_id)
        return report if report.opened is not None or report.num_ended else None

    def close(self) -> None:
        """Ends what was begun."""
        self._writer.shutdown()
        self._reader.shutdown()
        if self._disk is not None:
            self._disk.close()

    def _carry_out(self, move: Callable[[], _End], move_id: int, fence: Fence) -> None:
        try:
            fence()
            end = move()
        except Exception:
            logger.exception("a block was not moved between host and disk")
            end = _End(move_id, False, [])
        self._ends.put(end)

    def _store(self, move_id: int, slot: int, key: Key) -> _End:
        assert self._disk is not None
        dropped = self._disk.write(key, self._host.slot_bytes(slot))
        return _End(move_id, dropped is not None, dropped or [])

    def _fetch(self, move_id: int, slot: int, key: Key) -> _End:
        assert self._disk is not None
        return _End(move_id, self._disk.read(key, self._host.slot_bytes(slot)), [])
