"""SQL of webhooks that are yet to be delivered. They are written in the transaction that ends their batch."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection, delete, func, insert, select, update

from gateway.offline.records import BatchRecord
from gateway.offline.schema import webhooks
from gateway.webhook_targets import Target


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    sequence: int
    id: str  # "evt_…": the same at each attempt
    tenant: str
    url: str
    is_trusted: bool
    body: bytes
    num_attempts: int  # so far


class _Subject(msgspec.Struct, frozen=True):
    id: str


class BatchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's webhook event."""

    id: str
    object: str = "event"
    created_at: int
    type: str  # batch.completed, batch.failed, batch.expired, batch.cancelled
    data: _Subject


def post(connection: Connection, batch: BatchRecord, targets: Iterable[Target], now: int) -> None:
    """REQUIRES: the batch has ended."""
    for target in targets:
        event_id = f"evt_{secrets.token_hex(16)}"
        event = BatchEvent(id=event_id, created_at=now, type=f"batch.{batch.status}", data=_Subject(batch.id))
        connection.execute(
            insert(webhooks).values(
                id=event_id,
                tenant=batch.tenant,
                url=target.url,
                is_trusted=target.is_trusted,
                body=msgspec.json.encode(event),
                num_attempts=0,
                due_at=now,
            )
        )


def due(connection: Connection, now: int, limit: int) -> list[OutboxMessage]:
    """The one that has been due for longest first."""
    columns = [webhooks.c[name] for name in OutboxMessage.__slots__]
    query = select(*columns).where(webhooks.c.due_at <= now).order_by(webhooks.c.due_at, webhooks.c.sequence)
    return [OutboxMessage(**row._mapping) for row in connection.execute(query.limit(limit))]


def next_due_at(connection: Connection) -> int | None:
    found: int | None = connection.scalar(select(func.min(webhooks.c.due_at)))
    return found


def remove(connection: Connection, sequence: int) -> None:
    connection.execute(delete(webhooks).where(webhooks.c.sequence == sequence))


def postpone(connection: Connection, sequence: int, due_at: int) -> None:
    """After an attempt that failed."""
    changed = {"num_attempts": webhooks.c.num_attempts + 1, "due_at": due_at}
    connection.execute(update(webhooks).where(webhooks.c.sequence == sequence).values(changed))
