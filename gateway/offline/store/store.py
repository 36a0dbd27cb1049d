"""OfflineStore: files, batches and rows that survive anything.

Every method returns when its change is on the disk. Blocking work runs on threads: one writes to the database, a few
read and handle files, so that readers wait for nobody. Methods with a tenant see only that tenant's objects.

Raised by all of them: StorageFullError and UnavailableError (the database is away); then nothing has changed, and the
same call may be repeated later. DamagedError and RefusedError concern what was asked alone (failures.py).
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, update

from gateway.config.webhook_targets import WebhookTargets
from gateway.offline.database import schema
from gateway.offline.database.database import Database, database_url
from gateway.offline.database.failures import DamagedError
from gateway.offline.database.group_commit import GroupCommit
from gateway.offline.database.threads import StoreThreads
from gateway.offline.database.wall_clock import WallClock
from gateway.offline.store import batches, files, finalization, outbox, rows
from gateway.offline.store.accounts import Accounts, Quota, batch_bytes, error_bytes, record_bytes
from gateway.offline.store.directory import DataDirectory, one_line_of_trouble
from gateway.offline.store.leases import HeldElsewhereError, Leases
from gateway.offline.store.outbox import OutboxMessage
from gateway.offline.store.pairing import pair
from gateway.offline.store.records import (
    BatchRecord,
    BatchStatus,
    CheckedRow,
    FileRecord,
    RowRecord,
    RowResult,
    TenantUsage,
)
from gateway.offline.store.rows import LandedRow, RowPlace
from gateway.offline.store.upload import Upload
from gateway.protocol.errors import ApiError, InvalidRequestError, QuotaError

KEEP_ROWS_SECONDS = 600  # after a batch's end, for clients that read its results as they land
KEEP_RECORD_SECONDS = 30 * 86400  # after a batch's end; by then its files are gone, too


_log = logging.getLogger("hocket.offline")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """What a client asks for, checked as far as one can without the file."""

    endpoint: str
    input_file_id: str
    completion_window: str
    window_seconds: int
    metadata: dict[str, str] | None = None
    output_expires_after: int | None = None


class OfflineStore:
    """Make it with `open()`, which deletes what a crash left; `recover()` comes first, `close()` last."""

    def __init__(
        self,
        directory: DataDirectory,
        database: Database,
        quota: Quota,
        webhooks: WebhookTargets,
        now: WallClock,
        leases: Leases | None = None,
    ) -> None:
        self._directory = directory
        self._database = database
        self.leases = leases  # None: no other gateway shares it
        self.quota = quota
        self._accounts = Accounts(quota, is_shared=leases is not None)
        self.webhooks = webhooks
        self.now = now
        self.posted = asyncio.Event()  # a webhook waits to be delivered; the courier clears it
        self.changed = asyncio.Event()  # a batch began, was cancelled or ended; whoever waits clears it
        self.created = asyncio.Event()  # a batch waits for its validation, or was cancelled; the validator clears it
        self._threads = StoreThreads(database)
        self._commits = GroupCommit[RowResult](self._commit_results)
        self._finalizing: dict[str, asyncio.Task[BatchRecord]] = {}

    @classmethod
    def open(
        cls,
        path: Path,
        url: str | None,
        quota: Quota,
        webhooks: WebhookTargets | None = None,
        now: Callable[[], float] | None = None,
        steady: Callable[[], float] | None = None,
        lease_seconds: float | None = None,
    ) -> Self:
        """`url` None: SQLite in the data directory. `now`, `steady`: the time of day, and a clock that nobody sets, in
        tests; a `now` alone is believed. `lease_seconds`: directory and database are shared with other gateways
        (leases.py), PostgreSQL only. Raises StoreOpenError, DirectoryInUseError.
        """
        clock = WallClock() if now is None else WallClock(now, steady or now)
        leases = None if lease_seconds is None else Leases(f"{socket.gethostname()}:{os.getpid()}", lease_seconds)
        directory = DataDirectory(path, is_shared=leases is not None)
        try:
            with one_line_of_trouble(path):
                database = _paired(directory, url, leases)
        except BaseException:
            directory.close()
            raise
        return cls(directory, database, quota, webhooks or WebhookTargets(), clock, leases)

    async def recover(self) -> None:
        """Finishes finalisations that a crash or a full disk interrupted. One that cannot be does not keep others."""
        for batch in await self.open_batches():
            if batch.outcome is not None:
                with _alone(f"Batch {batch.id} cannot be ended yet"), suppress(HeldElsewhereError):
                    await self.finalize(batch.id, batch.outcome)

    async def close(self) -> None:
        await self._commits.flush()
        if self._finalizing:
            await asyncio.wait(self._finalizing.values())
        await self._threads.finish()
        if self.leases is not None:
            with suppress(ApiError):  # then they run out
                await self._threads.write(self.leases.leave)
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._threads.close()
        self._database.close()
        self._directory.close()

    # Files

    def upload(self, tenant: str = "") -> Upload:
        """A file to be written piece by piece; `create_file` makes it exist."""
        return Upload(self._directory, self._threads, tenant, self._accounts)

    async def create_file(
        self, upload: Upload, *, tenant: str, purpose: str, filename: str, expires_after: int | None
    ) -> FileRecord:
        """Raises QuotaError. REQUIRES: it is that tenant's upload."""
        created_at = int(self.now())
        record = FileRecord(
            id=f"file-{secrets.token_hex(12)}",
            tenant=tenant,
            purpose=purpose,
            filename=filename,
            num_bytes=upload.num_bytes,
            created_at=created_at,
            expires_at=None if expires_after is None else created_at + expires_after,
        )
        await upload.take_all()
        return await self._threads.shielded(self._create_file(upload, record))

    async def _create_file(self, upload: Upload, record: FileRecord) -> FileRecord:
        def add(connection: Connection) -> None:
            self._accounts.add_file(connection, record.tenant, record.num_bytes)
            files.add(connection, record)

        try:
            await upload.publish(self._directory.file(record.id))
            await self._threads.write(add)
        except BaseException:
            self._directory.remove(record.id)
            raise
        finally:
            upload.release()
        return record

    async def file(self, tenant: str, file_id: str) -> FileRecord:
        """Raises NotFoundError."""
        return await self._threads.read(lambda connection: files.get(connection, tenant, file_id, self.now()))

    async def list_files(
        self, tenant: str, *, purpose: str | None = None, after: str | None = None, limit: int, is_ascending: bool
    ) -> tuple[list[FileRecord], bool]:
        """And whether there are more. Raises InvalidRequestError if `after` names no file."""
        return await self._threads.read(
            lambda connection: files.page(
                connection,
                tenant,
                purpose=purpose,
                after=after,
                limit=limit,
                is_ascending=is_ascending,
                now=self.now(),
            )
        )

    async def delete_file(self, tenant: str, file_id: str) -> None:
        """Raises NotFoundError, ConflictError while a batch reads it."""

        async def delete() -> None:
            await self._threads.write(lambda connection: files.remove(connection, tenant, file_id, self.now()))
            await self._threads.in_background(self._directory.remove, file_id)

        await self._threads.shielded(delete())

    def path(self, file_id: str) -> Path:
        """Where its content lies. It stays readable for whoever has opened it, even if it is deleted meanwhile."""
        return self._directory.file(file_id)

    # Batches

    async def create_batch(self, tenant: str, new: NewBatch) -> BatchRecord:
        """Raises InvalidRequestError, QuotaError."""
        now = int(self.now())
        record = BatchRecord(
            id=f"batch_{secrets.token_hex(12)}",
            tenant=tenant,
            endpoint=new.endpoint,
            input_file_id=new.input_file_id,
            completion_window=new.completion_window,
            window_seconds=new.window_seconds,
            status=BatchStatus.VALIDATING,
            created_at=now,
            expires_at=now + new.window_seconds,
            metadata=new.metadata,
            output_expires_after=new.output_expires_after,
        )

        def add(connection: Connection) -> None:
            file = files.get(connection, tenant, new.input_file_id, now)
            if file.purpose != "batch":
                raise InvalidRequestError(
                    f"File {file.id} has the purpose '{file.purpose}', a batch needs 'batch'.", param="input_file_id"
                )
            self._check_rows(connection, tenant, 1)
            self._accounts.check_batch(connection, record)
            batches.add(connection, record, batch_bytes(record))

        async def create() -> None:
            await self._threads.write(add)
            self.created.set()

        await self._threads.shielded(create())
        return record

    def _check_rows(self, connection: Connection, tenant: str, num_rows: int) -> None:
        _, pending = batches.load(connection, tenant)
        if pending + num_rows > self.quota.max_pending_rows:
            raise QuotaError(
                f"{pending} rows of your batches wait to be run; {self.quota.max_pending_rows} may. "
                "Wait for a batch to end, or cancel one.",
                code="rows_quota_exceeded",
            )

    async def batch(self, tenant: str, batch_id: str) -> BatchRecord:
        """Raises NotFoundError."""
        return await self._threads.read(lambda connection: batches.get(connection, batch_id, tenant))

    async def list_batches(
        self, tenant: str, *, after: str | None = None, limit: int
    ) -> tuple[list[BatchRecord], bool]:
        """Newest first, and whether there are more. Raises InvalidRequestError if `after` names no batch."""
        return await self._threads.read(lambda connection: batches.page(connection, tenant, after=after, limit=limit))

    async def cancel_batch(self, tenant: str, batch_id: str) -> BatchRecord:
        """It is `cancelling` until whoever runs its rows calls `finalize`. Raises NotFoundError, ConflictError."""

        def cancel(connection: Connection) -> BatchRecord:
            batches.cancel(connection, batches.get(connection, batch_id, tenant), int(self.now()))
            return batches.get(connection, batch_id, tenant)

        async def cancel_and_tell() -> BatchRecord:
            batch = await self._threads.write(cancel)
            self.created.set()
            self.changed.set()
            return batch

        return await self._threads.shielded(cancel_and_tell())

    async def landed(
        self, tenant: str, batch_id: str, after: int, limit: int
    ) -> tuple[BatchRecord, list[LandedRow], bool]:
        """The batch, results in the order in which rows finished, after that cursor, and whether there are more; the
        first are after 0. At least one, and others as far as rows.PAGE_BYTES go.

        They are kept for a while after the batch's end; then the files have them. Raises NotFoundError.
        """

        def read(connection: Connection) -> tuple[BatchRecord, list[LandedRow], bool]:
            return batches.get(connection, batch_id, tenant), *rows.landed(connection, batch_id, after, limit)

        return await self._threads.read(read)

    async def usage(self, tenant: str) -> TenantUsage:
        def read(connection: Connection) -> TenantUsage:
            num_batches, num_rows = batches.load(connection, tenant)
            return TenantUsage(self._accounts.stored(connection, tenant), num_rows, num_batches)

        return await self._threads.read(read)

    # Sharing with other gateways

    async def renew_leases(self) -> None:
        """REQUIRES: it is shared."""
        assert self.leases is not None
        await self._threads.write(self.leases.renew)
        if self.leases.is_leader:
            self.posted.set()  # others' batches may have ended

    async def lease_rows(self, batch_id: str, candidates: Sequence[int], limit: int) -> tuple[list[int], int]:
        """As Leases.take(). REQUIRES: it is shared."""
        assert self.leases is not None
        take = self.leases.take
        return await self._threads.write(lambda connection: take(connection, batch_id, candidates, limit))

    async def give_back_rows(self, batch_id: str) -> None:
        """All that this gateway has of a batch. REQUIRES: it is shared."""
        assert self.leases is not None
        await self._threads.write(partial(self.leases.give_back, batch_id=batch_id))

    async def claim(self, batch_id: str) -> None:
        """A batch that is to be validated. Raises HeldElsewhereError, also if another gateway has done it meanwhile."""
        leases = self.leases
        if leases is None:
            return

        def claim(connection: Connection) -> None:
            leases.claim(connection, batch_id)
            batch = batches.get(connection, batch_id)
            if batch.in_progress_at is not None or batch.outcome is not None:
                raise HeldElsewhereError(f"{batch_id} has been validated.")

        await self._threads.write(claim)

    # Validation. Where the store is shared: REQUIRES a claim, raises HeldElsewhereError if it was lost

    def _check_claim(self, connection: Connection, batch_id: str) -> None:
        if self.leases is not None:
            self.leases.check(connection, batch_id)

    async def add_rows(self, batch: BatchRecord, checked: Sequence[CheckedRow]) -> BatchRecord:
        """Raises QuotaError if these are more rows than the tenant may have waiting, or more than it may store."""

        def add(connection: Connection) -> BatchRecord:
            self._check_claim(connection, batch.id)
            if checked:
                self._check_rows(connection, batch.tenant, sum(row.error_line is None for row in checked))
                self._accounts.check_rows(connection, batch.tenant, checked)
                rows.add(connection, batch.id, checked)
            return batches.get(connection, batch.id)

        return await self._threads.write(add)

    async def drop_rows(self, batch_id: str) -> None:
        """For a validation that starts anew."""

        def drop(connection: Connection) -> bool:
            self._check_claim(connection, batch_id)
            return rows.drop_some(connection, batch_id)

        def restart(connection: Connection) -> None:
            self._check_claim(connection, batch_id)
            num_bytes = batch_bytes(batches.get(connection, batch_id))
            batches.change(connection, batch_id, num_rows=0, num_failed=0, stored_bytes=num_bytes)

        while await self._threads.write(drop):
            pass
        await self._threads.write(restart)

    async def begin_batch(self, batch_id: str, *, model: str | None, errors: bytes | None) -> BatchRecord:
        """validating -> in_progress, unless it was cancelled meanwhile."""

        def begin(connection: Connection) -> BatchRecord:
            self._set_errors(connection, batch_id, errors)
            batches.change(connection, batch_id, model=model)
            if batches.get(connection, batch_id).status is BatchStatus.VALIDATING:
                now = int(self.now())
                batches.change(connection, batch_id, status=BatchStatus.IN_PROGRESS, in_progress_at=now)
                if self.leases is not None:
                    self.leases.release(connection, batch_id)
            return batches.get(connection, batch_id)

        batch = await self._threads.write(begin)
        self.changed.set()
        return batch

    async def fail_batch(self, batch_id: str, errors: bytes) -> BatchRecord:
        """`errors`: a JSON list of {code, line, message, param}. Lines of bad rows go to its error file."""
        await self._threads.write(lambda connection: self._set_errors(connection, batch_id, errors))
        return await self.finalize(batch_id, BatchStatus.FAILED)

    def _set_errors(self, connection: Connection, batch_id: str, errors: bytes | None) -> None:
        self._check_claim(connection, batch_id)
        batch = batches.get(connection, batch_id)
        fitting = self._accounts.fitting_errors(connection, batch, errors)
        batches.change(connection, batch_id, errors=None if fitting is None else fitting.decode())
        batches.store_bytes(connection, batch_id, error_bytes(fitting) - error_bytes(batch.errors))

    # For whoever runs rows

    async def open_batches(self) -> list[BatchRecord]:
        """Of all tenants, oldest first: all that have not ended, without their errors and metadata. Those `in_progress`
        have rows to run. One whose record lies on a damaged page is left out.
        """
        try:
            return await self._threads.read(batches.open_ones)
        except DamagedError:
            found = []
            for sequence in await self._threads.read(batches.open_sequences):
                with _alone(f"The record of batch number {sequence} cannot be read"):
                    found += await self._threads.read(partial(batches.open_ones, sequence=sequence))
            return found

    async def num_pending(self, batch_id: str) -> int:
        """Its rows that have not ended, whoever runs them. Raises NotFoundError."""
        return await self._threads.read(lambda connection: batches.get(connection, batch_id).num_pending)

    async def pending_rows(
        self, batch_id: str, after_index: int = -1, limit: int = 256, max_bytes: int = 64 * 2**20
    ) -> list[RowRecord]:
        """In order of index; fewer than `limit` if their bodies are large, at least one if one is pending. None that
        another gateway runs.
        """

        def read(connection: Connection) -> list[RowRecord]:
            path = self.path(batches.get(connection, batch_id).input_file_id)
            places = rows.pending(connection, batch_id, after_index, limit, self.leases)
            return _with_bodies(path, places, max_bytes)

        return await self._threads.read(read)

    async def pending_among(
        self, batch_id: str, indices: Sequence[int], max_bytes: int = 64 * 2**20
    ) -> list[RowRecord]:
        """Those of these rows that are pending, in the order of `indices`, the first ones as far as `max_bytes` go."""

        def read(connection: Connection) -> list[RowRecord]:
            path = self.path(batches.get(connection, batch_id).input_file_id)
            return _with_bodies(path, rows.pending_among(connection, batch_id, indices), max_bytes)

        return await self._threads.read(read)

    async def short_of_space(self, tenants: Iterable[str]) -> frozenset[str]:
        """Those of the tenants that store nearly all that they may: their rows should wait."""
        short = set()
        for tenant in frozenset(tenants):
            try:
                if await self._threads.write(partial(self._accounts.is_short_of_space, tenant=tenant)):
                    short.add(tenant)
            except DamagedError:
                await self._threads.on_writer(self._accounts.cannot_be_counted, tenant)
        return frozenset(short)

    async def answers(self) -> bool:
        """Whether the database takes changes at present."""
        unchanged = update(schema.store).values(id=schema.store.c.id)
        try:
            await self._threads.write(lambda connection: connection.execute(unchanged))
        except ApiError:
            return False
        return True

    async def finish_rows(self, finished: Iterable[RowResult]) -> None:
        """Commits results. Calls at about the same time share one transaction.

        A row's first result counts, later ones are dropped, and so are results of a batch that is being finalised, and
        of rows that another gateway has been given meanwhile.
        Raises QuotaError if a tenant would store more than it may; then none of them is committed.
        """
        await self._commits.add(list(finished))

    async def finalize(self, batch_id: str, outcome: BatchStatus = BatchStatus.COMPLETED) -> BatchRecord:
        """Writes the output and error files and ends the batch as COMPLETED, EXPIRED, CANCELLED or FAILED.

        Rows that are pending then get an error line that says so. Idempotent: the first outcome counts; after a crash
        or a full disk a repeated call does what is left. Raises ValueError if rows of a COMPLETED one are pending.
        """
        task = self._finalizing.get(batch_id)
        if task is None:
            task = asyncio.create_task(self._finalize(batch_id, outcome))
            self._finalizing[batch_id] = task
            task.add_done_callback(lambda task: self._finalized(batch_id, task))
        return await asyncio.shield(task)

    def _finalized(self, batch_id: str, task: asyncio.Task[BatchRecord]) -> None:
        self._finalizing.pop(batch_id, None)
        if not task.cancelled():
            task.exception()  # whoever waited may be gone, and tries again

    async def _finalize(self, batch_id: str, outcome: BatchStatus) -> BatchRecord:
        await self._commits.add([])  # what was handed in before counts
        batch = await self._threads.on_writer(
            finalization.begin, self._database, batch_id, outcome, int(self.now()), self.leases
        )
        if not batch.is_open:
            return batch
        sizes = await self._threads.in_background(finalization.write_files, self._database, self._directory, batch_id)
        batch = await self._threads.on_writer(
            finalization.end, self._database, batch_id, sizes, int(self.now()), self.webhooks, self.leases
        )
        self.changed.set()
        self.posted.set()
        return batch

    # Webhooks

    async def due_webhooks(self, per_tenant: int) -> list[OutboxMessage]:
        """The first one of each tenant and receiver; of a tenant at most so many. Of gateways that share the store one
        delivers them.
        """
        if self.leases is not None and not self.leases.is_leader:
            return []
        return await self._threads.read(lambda connection: outbox.due(connection, int(self.now()), per_tenant))

    async def next_webhook_at(self, after: int = -1) -> int | None:
        """When the first one is due that is not due by then; None too if another gateway delivers them."""
        if self.leases is not None and not self.leases.is_leader:
            return None
        return await self._threads.read(lambda connection: outbox.next_due_at(connection, after))

    async def remove_webhook(self, sequence: int) -> None:
        await self._threads.write(lambda connection: outbox.remove(connection, sequence))

    async def postpone_webhook(self, sequence: int, seconds: float) -> None:
        due_at = math.ceil(self.now() + seconds)
        await self._threads.write(lambda connection: outbox.postpone(connection, sequence, due_at))

    # Upkeep

    async def sweep(self) -> None:
        """Deletes files whose time is up, rows of batches that ended a while ago, and batches that ended long ago.

        Every minute or so.
        """
        now = self.now()
        for file_id in await self._threads.write(lambda connection: files.remove_expired(connection, now)):
            with _alone(f"{file_id} cannot be deleted"):
                await self._threads.in_background(self._directory.remove, file_id)
        for batch_id in await self._threads.read(lambda c: batches.with_rows_to_drop(c, now - KEEP_ROWS_SECONDS)):
            with _alone(f"Rows of {batch_id} cannot be deleted"):
                await self._drop_rows(batch_id)
                await self._threads.write(partial(self._rows_are_gone, batch_id=batch_id))
        await self._threads.write(lambda connection: batches.remove_old(connection, now - KEEP_RECORD_SECONDS))

    def _rows_are_gone(self, connection: Connection, batch_id: str) -> None:
        num_bytes = record_bytes(batches.get(connection, batch_id))
        batches.change(connection, batch_id, has_rows=False, stored_bytes=num_bytes)

    async def _drop_rows(self, batch_id: str) -> None:
        while await self._threads.write(lambda connection: rows.drop_some(connection, batch_id)):
            pass

    async def _commit_results(self, finished: list[RowResult]) -> None:
        def finish(connection: Connection) -> None:
            tenants = batches.tenants(connection, {result.batch_id for result in finished})
            self._accounts.check_results(connection, finished, tenants)
            rows.finish(connection, finished, self.leases)

        if finished:
            await self._threads.write(finish)


def _paired(directory: DataDirectory, url: str | None, leases: Leases | None) -> Database:
    """The directory's database; what a crash left in the directory is gone, unless another gateway uses it."""
    database = Database(database_url(url or directory.own_database()), is_shared=leases is not None)
    try:
        pair(directory, database)
        if directory.is_alone:
            with database.reading() as connection:
                directory.clean(files.ids(connection))
        if leases is not None:
            directory.admit_others()
            with database.writing() as connection:
                leases.join(connection)
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def _alone(what: str) -> Iterator[None]:
    """What is wrong with one batch or file is said, and concerns no other."""
    try:
        yield
    except Exception as error:
        _log.warning("%s: %s", what, error)


def _with_bodies(path: Path, places: list[RowPlace], max_bytes: int) -> list[RowRecord]:
    found: list[RowRecord] = []
    with path.open("rb") as file:
        for place in places:
            max_bytes -= place.body_length
            if found and max_bytes < 0:
                break
            file.seek(place.body_offset)
            found.append(RowRecord(place.index, place.custom_id, file.read(place.body_length)))
    return found
