"""OfflineStore: files, batches and rows that survive anything.

Every method returns when its change is on the disk. Blocking work runs on threads: one writes to the database, a few
read and handle files, so that readers wait for nobody. Methods with a tenant see only that tenant's objects.

Raised by all of them: StorageFullError and UnavailableError (the database is away); then nothing has changed, and the
same call may be repeated later.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sqlalchemy import Connection

from gateway.offline import batches, files, finalization, outbox, rows
from gateway.offline.database import Database, database_url
from gateway.offline.directory import DataDirectory
from gateway.offline.group_commit import GroupCommit
from gateway.offline.outbox import OutboxMessage
from gateway.offline.pairing import pair
from gateway.offline.records import (
    BatchRecord,
    BatchStatus,
    CheckedRow,
    FileRecord,
    RowRecord,
    RowResult,
    TenantUsage,
)
from gateway.offline.rows import LandedRow, RowPlace
from gateway.offline.threads import StoreThreads
from gateway.offline.upload import Upload
from gateway.protocol.errors import InvalidRequestError, QuotaError
from gateway.webhook_targets import WebhookTargets

KEEP_ROWS_SECONDS = 600  # after a batch's end, for clients that read its results as they land


@dataclass(frozen=True, slots=True)
class Quota:
    """Of one tenant."""

    max_bytes: int
    max_pending_rows: int


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
        now: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._database = database
        self.quota = quota
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
        now: Callable[[], float] = time.time,
    ) -> Self:
        """`url` None: SQLite in the data directory. Raises StoreOpenError, DirectoryInUseError."""
        directory = DataDirectory(path)
        try:
            database = Database(database_url(url or f"sqlite:///{path / 'store.db'}"))
            try:
                pair(directory, database)
                with database.reading() as connection:
                    directory.clean(files.ids(connection))
            except BaseException:
                database.close()
                raise
        except BaseException:
            directory.close()
            raise
        return cls(directory, database, quota, webhooks or WebhookTargets(), now)

    async def recover(self) -> None:
        """Finishes finalisations that a crash or a full disk interrupted."""
        for batch in await self.open_batches():
            if batch.outcome is not None:
                await self.finalize(batch.id, batch.outcome)

    async def close(self) -> None:
        await self._commits.flush()
        if self._finalizing:
            await asyncio.wait(self._finalizing.values())
        await self._threads.finish()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._threads.close()
        self._database.close()
        self._directory.close()

    # Files

    def upload(self) -> Upload:
        """A file to be written piece by piece; `create_file` makes it exist."""
        return Upload(self._directory, self._threads)

    async def create_file(
        self, upload: Upload, *, tenant: str, purpose: str, filename: str, expires_after: int | None
    ) -> FileRecord:
        """Raises QuotaError."""
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
        await self.check_bytes(tenant, record.num_bytes)
        return await self._threads.whole(self._create_file(upload.publish(self._directory.file(record.id)), record))

    async def _create_file(self, publication: Awaitable[None], record: FileRecord) -> FileRecord:
        def add(connection: Connection) -> None:
            self._check_bytes(connection, record.tenant, record.num_bytes)
            files.add(connection, record)

        await publication
        try:
            await self._threads.write(add)
        except BaseException:
            self._directory.remove(record.id)
            raise
        return record

    async def check_bytes(self, tenant: str, num_bytes: int) -> None:
        """Whether the tenant may store that much more. Raises QuotaError."""
        await self._threads.read(lambda connection: self._check_bytes(connection, tenant, num_bytes))

    def _check_bytes(self, connection: Connection, tenant: str, num_bytes: int) -> None:
        stored = files.num_bytes(connection, tenant)
        if stored + num_bytes > self.quota.max_bytes:
            raise QuotaError(
                f"Your files take {stored} bytes; with {num_bytes} more they would exceed the {self.quota.max_bytes} "
                "that you may store. Delete files that you no longer need.",
                param="file",
                code="storage_quota_exceeded",
            )

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
            await self._threads.beside(self._directory.remove, file_id)

        await self._threads.whole(delete())

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
            batches.add(connection, record)

        async def create() -> None:
            await self._threads.write(add)
            self.created.set()

        await self._threads.whole(create())
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

        return await self._threads.whole(cancel_and_tell())

    async def landed(self, tenant: str, batch_id: str, after: int, limit: int) -> tuple[BatchRecord, list[LandedRow]]:
        """The batch, and results in the order in which rows finished, after that cursor; the first are after 0.

        They are kept for a while after the batch's end; then the files have them. Raises NotFoundError.
        """

        def read(connection: Connection) -> tuple[BatchRecord, list[LandedRow]]:
            return batches.get(connection, batch_id, tenant), rows.landed(connection, batch_id, after, limit)

        return await self._threads.read(read)

    async def usage(self, tenant: str) -> TenantUsage:
        def read(connection: Connection) -> TenantUsage:
            num_batches, num_rows = batches.load(connection, tenant)
            return TenantUsage(files.num_bytes(connection, tenant), num_rows, num_batches)

        return await self._threads.read(read)

    # Validation

    async def add_rows(self, batch: BatchRecord, checked: Sequence[CheckedRow]) -> BatchRecord:
        """Raises QuotaError if these are more rows than the tenant may have waiting."""

        def add(connection: Connection) -> BatchRecord:
            if checked:
                self._check_rows(connection, batch.tenant, sum(row.error_line is None for row in checked))
                rows.add(connection, batch.id, checked)
            return batches.get(connection, batch.id)

        return await self._threads.write(add)

    async def drop_rows(self, batch_id: str) -> None:
        """For a validation that starts anew."""
        await self._drop_rows(batch_id)
        await self._change(batch_id, num_rows=0, num_failed=0)

    async def begin_batch(self, batch_id: str, *, model: str | None, errors: bytes | None) -> BatchRecord:
        """validating -> in_progress, unless it was cancelled meanwhile."""

        def begin(connection: Connection) -> BatchRecord:
            batches.change(connection, batch_id, model=model, errors=_text(errors))
            if batches.get(connection, batch_id).status is BatchStatus.VALIDATING:
                now = int(self.now())
                batches.change(connection, batch_id, status=BatchStatus.IN_PROGRESS, in_progress_at=now)
            return batches.get(connection, batch_id)

        batch = await self._threads.write(begin)
        self.changed.set()
        return batch

    async def fail_batch(self, batch_id: str, errors: bytes) -> BatchRecord:
        """`errors`: a JSON list of {code, line, message, param}. Lines of bad rows go to its error file."""
        await self._change(batch_id, errors=_text(errors))
        return await self.finalize(batch_id, BatchStatus.FAILED)

    # For whoever runs rows

    async def open_batches(self) -> list[BatchRecord]:
        """Of all tenants, oldest first: all that have not ended. Those `in_progress` have rows to run."""
        return await self._threads.read(batches.open_ones)

    async def pending_rows(
        self, batch_id: str, after_index: int = -1, limit: int = 256, max_bytes: int = 64 * 2**20
    ) -> list[RowRecord]:
        """In order of index; fewer than `limit` if their bodies are large, but at least one if one is pending."""

        def read(connection: Connection) -> list[RowRecord]:
            path = self.path(batches.get(connection, batch_id).input_file_id)
            return _with_bodies(path, rows.pending(connection, batch_id, after_index, limit), max_bytes)

        return await self._threads.read(read)

    async def pending_among(
        self, batch_id: str, indices: Sequence[int], max_bytes: int = 64 * 2**20
    ) -> list[RowRecord]:
        """Those of these rows that are pending, in the order of `indices`, the first ones as far as `max_bytes` go."""

        def read(connection: Connection) -> list[RowRecord]:
            path = self.path(batches.get(connection, batch_id).input_file_id)
            return _with_bodies(path, rows.pending_among(connection, batch_id, indices), max_bytes)

        return await self._threads.read(read)

    async def finish_rows(self, finished: Iterable[RowResult]) -> None:
        """Commits results. Calls at about the same time share one transaction.

        A row's first result counts, later ones are dropped, and so are results of a batch that is being finalised.
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
            task.add_done_callback(lambda _: self._finalizing.pop(batch_id, None))
        return await asyncio.shield(task)

    async def _finalize(self, batch_id: str, outcome: BatchStatus) -> BatchRecord:
        await self._commits.add([])  # what was handed in before counts
        batch = await self._threads.on_writer(finalization.begin, self._database, batch_id, outcome, int(self.now()))
        if not batch.is_open:
            return batch
        sizes = await self._threads.beside(finalization.write_files, self._database, self._directory, batch_id)
        batch = await self._threads.on_writer(
            finalization.end, self._database, batch_id, sizes, int(self.now()), self.webhooks
        )
        self.changed.set()
        self.posted.set()
        return batch

    # Webhooks

    async def due_webhooks(self, limit: int) -> list[OutboxMessage]:
        return await self._threads.read(lambda connection: outbox.due(connection, int(self.now()), limit))

    async def next_webhook_at(self) -> int | None:
        return await self._threads.read(outbox.next_due_at)

    async def remove_webhook(self, sequence: int) -> None:
        await self._threads.write(lambda connection: outbox.remove(connection, sequence))

    async def postpone_webhook(self, sequence: int, seconds: float) -> None:
        due_at = math.ceil(self.now() + seconds)
        await self._threads.write(lambda connection: outbox.postpone(connection, sequence, due_at))

    # Upkeep

    async def sweep(self) -> None:
        """Deletes files whose time is up, and rows of batches that ended a while ago. Every minute or so."""
        now = self.now()
        for file_id in await self._threads.write(lambda connection: files.remove_expired(connection, now)):
            await self._threads.beside(self._directory.remove, file_id)
        for batch_id in await self._threads.read(lambda c: batches.with_rows_to_drop(c, now - KEEP_ROWS_SECONDS)):
            await self._drop_rows(batch_id)
            await self._change(batch_id, has_rows=False)

    async def _change(self, batch_id: str, **values: object) -> None:
        await self._threads.write(lambda connection: batches.change(connection, batch_id, **values))

    async def _drop_rows(self, batch_id: str) -> None:
        while await self._threads.write(lambda connection: rows.drop_some(connection, batch_id)):
            pass

    async def _commit_results(self, finished: list[RowResult]) -> None:
        if finished:
            await self._threads.write(lambda connection: rows.finish(connection, finished))


def _text(errors: bytes | None) -> str | None:
    return None if errors is None else errors.decode()


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
