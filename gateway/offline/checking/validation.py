"""Batches that wait for their validation get it, in the background: their rows, or the reason why not.

One process per file checks the lines (checker.py); what it finds is committed piece by piece, so that the batch's
counts show the progress. A crash meanwhile starts the validation anew.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from subprocess import PIPE
from typing import TypeAlias

import msgspec

from gateway.offline.checking.checker import LENGTH, Checked, Verdict
from gateway.offline.checking.checking import CheckTask, LineError
from gateway.offline.database.backoff import Backoff
from gateway.offline.database.failures import RefusedError, is_passing
from gateway.offline.store.leases import HeldElsewhereError
from gateway.offline.store.lines import RowError, error_line
from gateway.offline.store.records import BatchRecord, BatchStatus, CheckedRow
from gateway.offline.store.store import OfflineStore
from gateway.protocol.errors import ApiError, QuotaError

MAX_SHOWN_ERRORS = 100  # in the batch object; the error file has all
MAX_SHOWN_BYTES = 32_768  # of them as JSON
_MAX_PROCESSES = 2  # of different tenants: a small file need not wait for another tenant's large one
RETRY_SECONDS = (5.0, 300.0)  # first and longest pause after a full disk, or while the database is away
LOOK_SECONDS = 5.0  # between two looks for batches that other gateways took, and may have left behind
_ATTEMPTS = 3  # where the process dies, or we are wrong
_FRAME_SECONDS = 600.0  # that the process may think about some hundred lines

Process: TypeAlias = "subprocess.Popen[bytes]"

_log = logging.getLogger("hocket.offline")
_frames = msgspec.msgpack.Decoder(Checked)


class CheckerDiedError(Exception):
    """The process ended before its verdict."""


@dataclass(slots=True)
class _Postponed:
    """A batch whose validation failed, and is tried again."""

    due_at: float = 0.0  # on the event loop's clock
    num_failures: int = 0  # that were ours, not the disk's or the database's
    backoff: Backoff = field(default_factory=lambda: Backoff(*RETRY_SECONDS))


class Validator:
    """`run()` until it is cancelled."""

    def __init__(self, store: OfflineStore, models: Sequence[str], max_rows: int, max_line_bytes: int) -> None:
        self._store = store
        self._models = list(models)
        self._max_rows = max_rows
        self._max_line_bytes = max_line_bytes
        self._running: dict[str, asyncio.Task[None]] = {}  # by tenant
        self._postponed: dict[str, _Postponed] = {}  # by batch: they hold no process while they wait

    async def run(self) -> None:
        trouble = Backoff(*RETRY_SECONDS)
        try:
            while True:
                self._store.created.clear()
                try:
                    await self._start_some()
                    seconds = self._seconds_to_wait()
                    trouble.reset()
                except Exception as error:
                    _log.warning("Batches wait for their validation: %s", error)
                    seconds = trouble.pause()
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._store.created.wait()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _start_some(self) -> None:
        found = await self._store.open_batches()
        waiting = [batch for batch in found if batch.in_progress_at is None and batch.outcome is None]
        ids = {batch.id for batch in waiting}
        self._postponed = {batch_id: entry for batch_id, entry in self._postponed.items() if batch_id in ids}
        for batch in waiting:
            has_room = batch.tenant not in self._running and len(self._running) < _MAX_PROCESSES
            if has_room and self._due_at(batch) <= asyncio.get_running_loop().time():
                task = asyncio.create_task(self._settle(batch))
                self._running[batch.tenant] = task
                task.add_done_callback(lambda _, tenant=batch.tenant: self._ended(tenant))  # type: ignore[misc]

    def _due_at(self, batch: BatchRecord) -> float:
        return self._postponed[batch.id].due_at if batch.id in self._postponed else 0.0

    def _seconds_to_wait(self) -> float | None:
        if self._store.leases is not None:
            return LOOK_SECONDS
        if not self._postponed:
            return None
        # Whoever is due and has no room yet is begun when a process ends, which sets `created`.
        now = asyncio.get_running_loop().time()
        later = [entry.due_at for entry in self._postponed.values() if entry.due_at > now]
        return min(later) - now if later else None

    def _ended(self, tenant: str) -> None:
        del self._running[tenant]
        self._store.created.set()

    async def _settle(self, batch: BatchRecord) -> None:
        """One attempt. Afterwards the batch is in progress, has ended, or is postponed."""
        entry = self._postponed.setdefault(batch.id, _Postponed())
        entry.due_at = float("inf")
        try:
            await self._store.claim(batch.id)
            await self._validate_or_fail(batch, entry)
            self._postponed.pop(batch.id, None)
        except HeldElsewhereError:
            entry.due_at = asyncio.get_running_loop().time() + LOOK_SECONDS
        except Exception as error:
            if isinstance(error, ApiError) and is_passing(error):
                _log.warning("The validation of %s pauses: %s", batch.id, error)
            else:
                entry.num_failures += 1
                text = "The validation of %s failed (attempt %d)"
                _log.error(text, batch.id, entry.num_failures, exc_info=error)
            self._postponed[batch.id] = entry
            entry.due_at = asyncio.get_running_loop().time() + entry.backoff.pause()

    async def _validate_or_fail(self, batch: BatchRecord, entry: _Postponed) -> None:
        if entry.num_failures < _ATTEMPTS:
            return await self._validate(batch)
        reason = LineError("validation_failed", "The server could not check the file.", None, None)
        return await self._fail(batch, [reason], keeps_rows=False)

    async def _validate(self, batch: BatchRecord) -> None:
        await self._store.drop_rows(batch.id)
        errors = _ShownErrors()
        num_good = 0
        async with aclosing(_check(self._task(batch))) as pieces:
            async for checked in pieces:
                errors.add(checked.errors)
                num_good += len(checked.rows) - len(checked.errors)
                try:
                    current = await self._add(batch, checked.rows)
                except QuotaError as error:
                    reason = LineError(error.code or "", error.message, None, None)
                    return await self._fail(batch, [reason], keeps_rows=False)
                if current.status is BatchStatus.CANCELLING:
                    await self._store.finalize(batch.id, BatchStatus.CANCELLED)
                    return None
                if checked.verdict is not None:
                    return await self._decide(batch, checked.verdict, num_good, errors)
        raise CheckerDiedError("no verdict")

    async def _add(self, batch: BatchRecord, rows: Sequence[CheckedRow]) -> BatchRecord:
        """A row that the store refuses fails alone. Raises QuotaError."""
        try:
            return await self._store.add_rows(batch, rows)
        except RefusedError as error:
            if len(rows) > 1:
                middle = len(rows) // 2
                await self._add(batch, rows[:middle])
                return await self._add(batch, rows[middle:])
            _log.error("Row %d of %s cannot be stored: %s", rows[0].index, batch.id, error)
            return await self._store.add_rows(batch, [_unstorable(batch, rows[0], error)])

    async def _decide(self, batch: BatchRecord, verdict: Verdict, num_good: int, errors: _ShownErrors) -> None:
        if verdict.fatal is not None:
            return await self._fail(batch, [verdict.fatal], keeps_rows=False)
        if num_good == 0:
            return await self._fail(batch, errors.shown(), keeps_rows=True)
        shown = errors.shown()
        encoded = msgspec.json.encode(shown) if shown else None
        current = await self._store.begin_batch(batch.id, model=verdict.model, errors=encoded)
        if current.status is BatchStatus.CANCELLING:
            await self._store.finalize(batch.id, BatchStatus.CANCELLED)
        return None

    async def _fail(self, batch: BatchRecord, errors: list[LineError], *, keeps_rows: bool) -> None:
        if not keeps_rows:
            await self._store.drop_rows(batch.id)
        await self._store.fail_batch(batch.id, msgspec.json.encode(errors))

    def _task(self, batch: BatchRecord) -> CheckTask:
        return CheckTask(
            path=str(self._store.path(batch.input_file_id)),
            batch_id=batch.id,
            endpoint=batch.endpoint,
            models=self._models,
            max_rows=self._max_rows,
            max_line_bytes=self._max_line_bytes,
        )


def _unstorable(batch: BatchRecord, row: CheckedRow, error: RefusedError) -> CheckedRow:
    reason = RowError(error.code or "", f"This line could not be stored. {error.message}", line=row.index + 1)
    line = error_line(batch.id, row.index, None, reason)
    return CheckedRow(row.index, None, row.body_offset, 0, line)


class _ShownErrors:
    """The first ones, and how many more there are."""

    def __init__(self) -> None:
        self._first: list[LineError] = []
        self._num_bytes = 0
        self._num_others = 0

    def add(self, errors: list[LineError]) -> None:
        for error in errors:
            self._num_bytes += len(msgspec.json.encode(error)) if not self._num_others else 0
            if self._num_others or len(self._first) == MAX_SHOWN_ERRORS or self._num_bytes > MAX_SHOWN_BYTES:
                self._num_others += 1
            else:
                self._first.append(error)

    def shown(self) -> list[LineError]:
        if not self._num_others:
            return self._first
        message = f"{self._num_others} more lines have errors: the batch's error file names all of them."
        return [*self._first, LineError("more_errors", message, None, None)]


async def _check(task: CheckTask) -> AsyncGenerator[Checked]:
    """Raises CheckerDiedError.

    The process is started by `subprocess`, which need not copy this one's page tables as uvloop's fork does: with
    150 MB that would hold up every stream for 50 ms.
    """
    process = await _started(task)
    try:
        while True:
            async with asyncio.timeout(_FRAME_SECONDS):
                checked = await asyncio.to_thread(_frame, process)
            yield checked
            if checked.verdict is not None:
                return
    finally:
        await _ended(process)


async def _started(task: CheckTask) -> Process:
    """Cancelled or not, the process that its thread starts is not left behind."""
    starting = asyncio.create_task(asyncio.to_thread(_start, task))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _ended(await starting)
        raise


async def _ended(process: Process) -> None:
    """A cancelled `to_thread` may not run at all; this one does."""
    ending = asyncio.create_task(asyncio.to_thread(_end, process))
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        await ending
        raise


def _start(task: CheckTask) -> Process:
    command = [sys.executable, "-m", "gateway.offline.checking.checker"]
    # Not for Ctrl-C. In a session of its own its niceness would count for nothing (engine_process.py).
    process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, process_group=0)
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it died, as its stdout will say
        process.stdin.write(msgspec.json.encode(task))
        process.stdin.close()
    return process


def _end(process: Process) -> None:
    assert process.stdout is not None
    process.kill()
    process.wait()
    process.stdout.close()


def _frame(process: Process) -> Checked:
    assert process.stdout is not None
    head = process.stdout.read(LENGTH.size)
    if len(head) == LENGTH.size:
        (length,) = LENGTH.unpack(head)
        frame = process.stdout.read(length)
        if len(frame) == length:
            return _frames.decode(frame)
    raise CheckerDiedError(f"exit status {process.wait()}")
