"""SQL of batch records, and their life: which status follows which, and when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, delete, func, null, select, update

from gateway.offline.database.schema import batches
from gateway.offline.store.records import TERMINAL, BatchRecord, BatchStatus, TokenUsage
from gateway.protocol.errors import ConflictError, InvalidRequestError, NotFoundError

_CLOSED = [str(status) for status in TERMINAL]
_OPEN = [str(status) for status in BatchStatus if status not in TERMINAL]
PAGE_BYTES = 2**20  # of errors and metadata in one page
_PLAIN = (
    "id",
    "tenant",
    "endpoint",
    "input_file_id",
    "completion_window",
    "window_seconds",
    "created_at",
    "expires_at",
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
    "num_rows",
    "num_completed",
    "num_failed",
    "model",
    "output_expires_after",
    "has_rows",
)

_WITHOUT_TEXTS = [
    *(column for column in batches.c if column.name not in ("metadata", "errors")),
    null().label("metadata"),
    null().label("errors"),
]
_ENDED_AT = func.coalesce(batches.c.completed_at, batches.c.failed_at, batches.c.expired_at, batches.c.cancelled_at)


def add(connection: Connection, record: BatchRecord, stored_bytes: int = 0) -> None:
    """stored_bytes: as accounts.py counts them, like everywhere here."""
    values: dict[str, Any] = {name: getattr(record, name) for name in _PLAIN}
    values["status"] = str(record.status)
    values["stored_bytes"] = stored_bytes
    if record.metadata is not None:
        values["metadata"] = msgspec.json.encode(record.metadata).decode()
    connection.execute(batches.insert().values(values))


def get(connection: Connection, batch_id: str, tenant: str | None = None) -> BatchRecord:
    """Raises NotFoundError. Without a tenant: of any."""
    query = select(batches).where(batches.c.id == batch_id)
    if tenant is not None:
        query = query.where(batches.c.tenant == tenant)
    row = connection.execute(query).first()
    if row is None:
        raise NotFoundError(f"No batch found with id '{batch_id}'.", param="batch_id")
    return _record(row)


def sequence(connection: Connection, batch_id: str) -> int:
    """The key that its rows carry. Raises NotFoundError."""
    found = connection.scalar(select(batches.c.sequence).where(batches.c.id == batch_id))
    if found is None:
        raise NotFoundError(f"No batch found with id '{batch_id}'.", param="batch_id")
    return int(found)


def sequences(connection: Connection, batch_ids: Iterable[str]) -> dict[str, int]:
    query = select(batches.c.id, batches.c.sequence).where(batches.c.id.in_(list(batch_ids)))
    return {row.id: row.sequence for row in connection.execute(query)}


def file_ids(connection: Connection, batch_id: str) -> tuple[str, str]:
    """Of the output and the error file that finalisation writes. REQUIRES: it has begun."""
    query = select(batches.c.output_file_id, batches.c.error_file_id).where(batches.c.id == batch_id)
    output_id, error_id = connection.execute(query).one()
    return output_id, error_id


def page(connection: Connection, tenant: str, *, after: str | None, limit: int) -> tuple[list[BatchRecord], bool]:
    """Newest first, and whether there are more: fewer than `limit` if they say much. Raises InvalidRequestError."""
    order = batches.c.sequence
    query = select(batches).where(batches.c.tenant == tenant)
    if after is not None:
        start = connection.scalar(select(order).where(batches.c.id == after, batches.c.tenant == tenant))
        if start is None:
            raise InvalidRequestError(f"There is no batch '{after}' to go on after.", param="after")
        query = query.where(order < start)
    found: list[BatchRecord] = []
    num_bytes = 0
    for row in connection.execute(query.order_by(order.desc()).limit(limit + 1)):
        num_bytes += len(row.errors or "") + len(row.metadata or "")
        if len(found) == limit or (found and num_bytes > PAGE_BYTES):
            return found, True
        found.append(_record(row))
    return found, False


def open_ones(connection: Connection, sequence: int | None = None) -> list[BatchRecord]:
    """Of all tenants, oldest first, without what clients alone want to see; or that one, if it is open."""
    query = select(*_WITHOUT_TEXTS).where(batches.c.status.in_(_OPEN)).order_by(batches.c.sequence)
    if sequence is not None:
        query = query.where(batches.c.sequence == sequence)
    return [_record(row) for row in connection.execute(query)]


def open_sequences(connection: Connection) -> list[int]:
    """From the index alone: it may be whole where records are not."""
    query = select(batches.c.sequence).where(batches.c.status.in_(_OPEN))
    return sorted(connection.scalars(query))


def load(connection: Connection, tenant: str) -> tuple[int, int]:
    """Open batches of a tenant, and their rows that have not finished."""
    pending = func.sum(batches.c.num_rows - batches.c.num_completed - batches.c.num_failed)
    query = select(func.count(), pending).where(batches.c.tenant == tenant, batches.c.status.not_in(_CLOSED))
    count, rows = connection.execute(query).one()
    return count, int(rows or 0)


def stored_bytes(connection: Connection, tenant: str) -> int:
    """Of all batches of a tenant, ended or not."""
    query = select(func.sum(batches.c.stored_bytes)).where(batches.c.tenant == tenant)
    return int(connection.scalar(query) or 0)


def tenants(connection: Connection, batch_ids: Iterable[str]) -> dict[str, str]:
    query = select(batches.c.id, batches.c.tenant).where(batches.c.id.in_(list(batch_ids)))
    return {row.id: row.tenant for row in connection.execute(query)}


def store_bytes(connection: Connection, batch_id: str, num_bytes: int) -> None:
    """So many more than before; fewer, if negative."""
    more = batches.c.stored_bytes + num_bytes
    connection.execute(update(batches).where(batches.c.id == batch_id).values(stored_bytes=more))


def remove_old(connection: Connection, ended_before: float) -> None:
    """Records of batches that ended before then, whose rows are gone already."""
    is_old = (batches.c.status.in_(_CLOSED)) & (ended_before > _ENDED_AT) & ~batches.c.has_rows
    connection.execute(delete(batches).where(is_old))


def cancel(connection: Connection, batch: BatchRecord, now: int) -> None:
    """Raises ConflictError once it has ended. A second time changes nothing."""
    if not batch.is_open or batch.status is BatchStatus.FINALIZING:
        raise ConflictError(f"Cannot cancel a batch with status '{batch.status}'.", code="batch_not_cancellable")
    if batch.status is not BatchStatus.CANCELLING:
        change(connection, batch.id, status=BatchStatus.CANCELLING, cancelling_at=now)


def change(connection: Connection, batch_id: str, **values: Any) -> None:
    if "status" in values:
        values["status"] = str(values["status"])
    connection.execute(update(batches).where(batches.c.id == batch_id).values(**values))


def count(
    connection: Connection, batch_sequence: int, num_completed: int, num_failed: int, usage: TokenUsage, num_bytes: int
) -> None:
    """Rows that have ended. num_bytes: what is stored of them."""
    column = batches.c
    connection.execute(
        update(batches)
        .where(column.sequence == batch_sequence)
        .values(
            num_completed=column.num_completed + num_completed,
            num_failed=column.num_failed + num_failed,
            input_tokens=column.input_tokens + usage.input_tokens,
            cached_tokens=column.cached_tokens + usage.cached_tokens,
            output_tokens=column.output_tokens + usage.output_tokens,
            stored_bytes=column.stored_bytes + num_bytes,
        )
    )


def with_rows_to_drop(connection: Connection, ended_before: float) -> list[str]:
    """Batches that ended before then, and whose rows are still kept."""
    column = batches.c
    query = select(column.id).where(column.has_rows, column.status.in_(_CLOSED), ended_before > _ENDED_AT)
    return list(connection.scalars(query))


def _record(row: Row[Any]) -> BatchRecord:
    columns = row._mapping
    status = BatchStatus(row.status)
    has_ended = status in TERMINAL
    return BatchRecord(
        **{name: columns[name] for name in _PLAIN},
        status=status,
        outcome=BatchStatus(row.outcome) if row.outcome else None,
        metadata=msgspec.json.decode(columns["metadata"]) if columns["metadata"] else None,
        errors=row.errors.encode() if row.errors else None,
        usage=TokenUsage(
            input_tokens=row.input_tokens, cached_tokens=row.cached_tokens, output_tokens=row.output_tokens
        ),
        output_file_id=row.output_file_id if has_ended else None,
        error_file_id=row.error_file_id if has_ended else None,
    )
