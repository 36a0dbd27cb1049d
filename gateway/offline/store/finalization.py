"""A batch's end: its results become an output and an error file, in order of rows.

Three steps, each of which may be repeated after a crash: the ids of the files are chosen and no row counts any more
(a transaction), the files are written (equal bytes each time, renamed when whole), the batch has ended and its files
exist (a transaction).
"""

from __future__ import annotations

import secrets
from typing import BinaryIO

from gateway.config.webhook_targets import WebhookTargets
from gateway.offline.database.database import Database
from gateway.offline.store import batches, files, outbox, rows
from gateway.offline.store.accounts import FILE_BYTES
from gateway.offline.store.directory import DataDirectory
from gateway.offline.store.leases import Leases
from gateway.offline.store.lines import CANCELLED, EXPIRED, error_line
from gateway.offline.store.records import BatchRecord, BatchStatus, FileRecord, RowState
from gateway.offline.store.rows import EndedRow

OUTPUT_SECONDS = 30 * 86400  # that output and error files are kept, unless the batch says otherwise
_ROWS_AT_ONCE = 256
_CLOSING = {BatchStatus.EXPIRED: RowState.EXPIRED, BatchStatus.CANCELLED: RowState.CANCELLED}


def begin(
    database: Database, batch_id: str, outcome: BatchStatus, now: int, leases: Leases | None = None
) -> BatchRecord:
    """From here on results of this batch are ignored. A repeated call keeps the first outcome.

    Raises ValueError if a batch is to be completed while rows are pending, NotFoundError, HeldElsewhereError.
    """
    with database.writing() as connection:
        batch = batches.get(connection, batch_id)
        if leases is not None and batch.is_open:
            leases.claim(connection, batch_id)
        if batch.outcome is None and batch.is_open:
            if outcome in _CLOSING:
                rows.close(connection, batch_id, _CLOSING[outcome])
            elif outcome is BatchStatus.COMPLETED and batch.num_pending:
                raise ValueError(f"{batch.num_pending} rows of {batch_id} are pending")
            is_shown = outcome in (BatchStatus.COMPLETED, BatchStatus.EXPIRED)
            shown = {"status": BatchStatus.FINALIZING, "finalizing_at": now} if is_shown else {}
            batches.change(connection, batch_id, outcome=str(outcome), **_new_ids(), **shown)
        return batches.get(connection, batch_id)


def _new_ids() -> dict[str, str]:
    return {name: f"file-{secrets.token_hex(12)}" for name in ("output_file_id", "error_file_id")}


def write_files(database: Database, directory: DataDirectory, batch_id: str) -> dict[str, int]:
    """The sizes of the files written, by id. Raises StorageFullError; then it may be repeated."""
    with database.reading() as connection:
        output_id, error_id = batches.file_ids(connection, batch_id)
    with directory.part() as (output, output_path), directory.part() as (errors, error_path):
        _copy_lines(database, batch_id, output, errors)
        sizes: dict[str, int] = {}
        for part, path, file_id in ((output, output_path, output_id), (errors, error_path, error_id)):
            if part.tell():
                sizes[file_id] = part.tell()
                directory.publish(part, path, directory.file(file_id))
    return sizes


def _copy_lines(database: Database, batch_id: str, output: BinaryIO, errors: BinaryIO) -> None:
    after = -1
    while True:
        with database.reading() as connection:
            ended = rows.ended(connection, batch_id, after, _ROWS_AT_ONCE)
        if not ended:
            return
        for row in ended:
            target = output if row.state is RowState.DONE else errors
            target.write(_line(batch_id, row) + b"\n")
        after = ended[-1].index


def _line(batch_id: str, row: EndedRow) -> bytes:
    if row.line is not None:
        return row.line
    return error_line(batch_id, row.index, row.custom_id, EXPIRED if row.state is RowState.EXPIRED else CANCELLED)


def end(
    database: Database,
    batch_id: str,
    sizes: dict[str, int],
    now: int,
    webhooks: WebhookTargets,
    leases: Leases | None = None,
) -> BatchRecord:
    """Raises HeldElsewhereError if another gateway has begun it anew."""
    with database.writing() as connection:
        batch = batches.get(connection, batch_id)
        if not batch.is_open:
            return batch
        if leases is not None:
            leases.check(connection, batch_id)
            leases.end(connection, batch_id)
        assert batch.outcome is not None
        ids = batches.file_ids(connection, batch_id)
        for kind, file_id in zip(("output", "error"), ids, strict=True):
            if file_id in sizes:
                files.add(connection, _file(batch, file_id, kind, sizes[file_id], now))
                batches.store_bytes(connection, batch_id, -(sizes[file_id] + FILE_BYTES))
        written = [file_id if file_id in sizes else None for file_id in ids]
        batches.change(
            connection,
            batch_id,
            status=batch.outcome,
            output_file_id=written[0],
            error_file_id=written[1],
            **{f"{batch.outcome}_at": now},
        )
        ended = batches.get(connection, batch_id)
        outbox.post(connection, ended, webhooks.of(ended.tenant, ended.metadata), now)
        return ended


def _file(batch: BatchRecord, file_id: str, kind: str, num_bytes: int, now: int) -> FileRecord:
    seconds = batch.output_expires_after or OUTPUT_SECONDS
    return FileRecord(
        id=file_id,
        tenant=batch.tenant,
        purpose="batch_output",
        filename=f"{batch.id}_{kind}.jsonl",
        num_bytes=num_bytes,
        created_at=now,
        expires_at=now + seconds,
    )
