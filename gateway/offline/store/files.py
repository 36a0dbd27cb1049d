"""SQL of file records."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Row, func, select

from gateway.offline.database.schema import batches, files
from gateway.offline.store.records import TERMINAL, FileRecord
from gateway.protocol.errors import ConflictError, InvalidRequestError, NotFoundError


def add(connection: Connection, record: FileRecord) -> None:
    connection.execute(files.insert().values(**asdict(record)))


def get(connection: Connection, tenant: str, file_id: str, now: float) -> FileRecord:
    """Raises NotFoundError. A file whose time is up is gone, whether or not it was swept yet."""
    row = connection.execute(select(files).where(files.c.id == file_id, files.c.tenant == tenant)).first()
    if row is None or _is_expired(row, now):
        raise NotFoundError(f"No such File object: {file_id}", param="id")
    return _record(row)


def page(
    connection: Connection,
    tenant: str,
    *,
    purpose: str | None,
    after: str | None,
    limit: int,
    is_ascending: bool,
    now: float,
) -> tuple[list[FileRecord], bool]:
    """The files after that one, and whether there are more. Raises InvalidRequestError."""
    order = files.c.sequence
    query = select(files).where(files.c.tenant == tenant, files.c.expires_at.is_(None) | (files.c.expires_at > now))
    if purpose is not None:
        query = query.where(files.c.purpose == purpose)
    if after is not None:
        start = connection.scalar(select(order).where(files.c.id == after, files.c.tenant == tenant))
        if start is None:
            raise InvalidRequestError(f"There is no file '{after}' to go on after.", param="after")
        query = query.where(order > start if is_ascending else order < start)
    query = query.order_by(order if is_ascending else order.desc()).limit(limit + 1)
    found = [_record(row) for row in connection.execute(query)]
    return found[:limit], len(found) > limit


def remove(connection: Connection, tenant: str, file_id: str, now: float) -> None:
    """Raises NotFoundError, or ConflictError while a batch reads it."""
    get(connection, tenant, file_id, now)
    if batch_id := _user(connection, file_id):
        raise ConflictError(
            f"File {file_id} is the input of batch {batch_id}, which has not ended: cancel it first.",
            param="id",
            code="file_in_use",
        )
    connection.execute(files.delete().where(files.c.id == file_id))


def remove_expired(connection: Connection, now: float) -> list[str]:
    """Not those that a batch reads. Returns the ids."""
    query = select(files.c.id).where(files.c.expires_at <= now)
    expired = [file_id for file_id in connection.scalars(query) if not _user(connection, file_id)]
    for file_id in expired:
        connection.execute(files.delete().where(files.c.id == file_id))
    return expired


def ids(connection: Connection) -> set[str]:
    return set(connection.scalars(select(files.c.id)))


def total(connection: Connection, tenant: str) -> tuple[int, int]:
    """How many, and their bytes."""
    query = select(func.count(), func.sum(files.c.num_bytes)).where(files.c.tenant == tenant)
    count, num_bytes = connection.execute(query).one()
    return count, int(num_bytes or 0)


def _user(connection: Connection, file_id: str) -> str | None:
    is_open = batches.c.status.not_in([str(status) for status in TERMINAL])
    return connection.scalar(select(batches.c.id).where(batches.c.input_file_id == file_id, is_open).limit(1))


def _is_expired(row: Row[Any], now: float) -> bool:
    return row.expires_at is not None and row.expires_at <= now


def _record(row: Row[Any]) -> FileRecord:
    return FileRecord(
        id=row.id,
        tenant=row.tenant,
        purpose=row.purpose,
        filename=row.filename,
        num_bytes=row.num_bytes,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )
