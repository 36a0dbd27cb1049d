"""SQL of webhooks that are yet to be delivered. They are written in the transaction that ends their batch."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
from sqlalchemy import Connection, delete, func, insert, select, update

from gateway.config.webhook_targets import Target
from gateway.offline.database.schema import webhooks
from gateway.offline.store.records import BatchRecord


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    sequence: int
    id: str  # "evt_…": the same at each attempt
    tenant: str
    url: str
    receiver: str  # host and port of the URL
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
                receiver=receiver_of(target.url),
                is_trusted=target.is_trusted,
                body=msgspec.json.encode(event),
                num_attempts=0,
                due_at=now,
            )
        )


def receiver_of(url: str) -> str:
    return urlsplit(url).netloc.lower()


def due(connection: Connection, now: int, per_tenant: int) -> list[OutboxMessage]:
    """For each tenant and receiver the one that has been due for longest, those before the others; of a tenant at most
    so many.
    """
    is_due = webhooks.c.due_at <= now
    order = (webhooks.c.due_at, webhooks.c.sequence)
    turn = func.row_number().over(partition_by=(webhooks.c.tenant, webhooks.c.receiver), order_by=order)
    turns = (
        select(webhooks.c.sequence, webhooks.c.tenant, webhooks.c.due_at, turn.label("turn")).where(is_due).subquery()
    )
    place = func.row_number().over(partition_by=turns.c.tenant, order_by=(turns.c.due_at, turns.c.sequence))
    places = select(turns.c.sequence, place.label("place")).where(turns.c.turn == 1).subquery()
    columns = [webhooks.c[name] for name in OutboxMessage.__slots__]
    query = select(*columns).join(places, places.c.sequence == webhooks.c.sequence).where(places.c.place <= per_tenant)
    return [OutboxMessage(**row._mapping) for row in connection.execute(query.order_by(*order))]


def next_due_at(connection: Connection, after: int) -> int | None:
    """Of what is not due by then."""
    found: int | None = connection.scalar(select(func.min(webhooks.c.due_at)).where(webhooks.c.due_at > after))
    return found


def remove(connection: Connection, sequence: int) -> None:
    connection.execute(delete(webhooks).where(webhooks.c.sequence == sequence))


def postpone(connection: Connection, sequence: int, due_at: int) -> None:
    """After an attempt that failed."""
    changed = {"num_attempts": webhooks.c.num_attempts + 1, "due_at": due_at}
    connection.execute(update(webhooks).where(webhooks.c.sequence == sequence).values(changed))
