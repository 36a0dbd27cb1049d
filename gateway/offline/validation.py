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
from subprocess import PIPE
from typing import TypeAlias

import msgspec

from gateway.offline.checker import LENGTH, Checked, Verdict
from gateway.offline.checking import CheckTask, LineError
from gateway.offline.records import BatchRecord, BatchStatus
from gateway.offline.store import OfflineStore
from gateway.protocol.errors import QuotaError, StorageFullError, UnavailableError

MAX_SHOWN_ERRORS = 1000  # in the batch object; the error file has all
_MAX_PROCESSES = 2  # of different tenants: a small file need not wait for another tenant's large one
_RETRY_SECONDS = 5.0  # after a full disk, or while the database is away
_ATTEMPTS = 3  # where the process dies, or we are wrong

Process: TypeAlias = "subprocess.Popen[bytes]"

_log = logging.getLogger("hocket.offline")
_frames = msgspec.msgpack.Decoder(Checked)


class CheckerDiedError(Exception):
    """The process ended before its verdict."""


class Validator:
    """`run()` until it is cancelled."""

    def __init__(self, store: OfflineStore, models: Sequence[str], max_rows: int, max_line_bytes: int) -> None:
        self._store = store
        self._models = list(models)
        self._max_rows = max_rows
        self._max_line_bytes = max_line_bytes
        self._running: dict[str, asyncio.Task[None]] = {}  # by tenant

    async def run(self) -> None:
        try:
            while True:
                self._store.created.clear()
                with suppress(UnavailableError):
                    await self._start_some()
                await self._store.created.wait()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _start_some(self) -> None:
        for batch in await self._store.open_batches():
            is_waiting = batch.in_progress_at is None and batch.outcome is None
            if is_waiting and batch.tenant not in self._running and len(self._running) < _MAX_PROCESSES:
                task = asyncio.create_task(self._settle(batch))
                self._running[batch.tenant] = task
                task.add_done_callback(lambda _, tenant=batch.tenant: self._ended(tenant))  # type: ignore[misc]

    def _ended(self, tenant: str) -> None:
        del self._running[tenant]
        self._store.created.set()

    async def _settle(self, batch: BatchRecord) -> None:
        """Until the batch is in progress or has ended."""
        num_failures = 0
        while True:
            try:
                return await self._validate(batch)
            except (StorageFullError, UnavailableError) as error:
                _log.warning("The validation of %s pauses: %s", batch.id, error.message)
            except Exception:
                num_failures += 1
                _log.exception("The validation of %s failed (attempt %d)", batch.id, num_failures)
                if num_failures == _ATTEMPTS:
                    reason = LineError("validation_failed", "The server could not check the file.", None, None)
                    return await self._fail(batch, [reason], keeps_rows=False)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _validate(self, batch: BatchRecord) -> None:
        await self._store.drop_rows(batch.id)
        errors = _ShownErrors()
        num_good = 0
        async with aclosing(_check(self._task(batch))) as pieces:
            async for checked in pieces:
                errors.add(checked.errors)
                num_good += len(checked.rows) - len(checked.errors)
                try:
                    current = await self._store.add_rows(batch, checked.rows)
                except QuotaError as error:
                    reason = LineError(error.code or "", error.message, None, None)
                    return await self._fail(batch, [reason], keeps_rows=False)
                if current.status is BatchStatus.CANCELLING:
                    await self._store.finalize(batch.id, BatchStatus.CANCELLED)
                    return None
                if checked.verdict is not None:
                    return await self._decide(batch, checked.verdict, num_good, errors)
        raise CheckerDiedError("no verdict")

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


class _ShownErrors:
    """The first ones, and how many more there are."""

    def __init__(self) -> None:
        self._first: list[LineError] = []
        self._num_others = 0

    def add(self, errors: list[LineError]) -> None:
        room = MAX_SHOWN_ERRORS - len(self._first)
        self._first += errors[:room]
        self._num_others += max(0, len(errors) - room)

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
    command = [sys.executable, "-m", "gateway.offline.checker"]
    process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, start_new_session=True)
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
