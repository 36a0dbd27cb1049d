"""Which gateway works on what, where several share a store (`--share-batches`).

A gateway that runs is a *runner*: a number that is never given again, and the time until which it counts as alive, on
the database's clock. It is renewed again and again; a runner whose time is up is removed by any other, and what it had
with it. A *lease* is a row in a runner's name, or a whole batch while that is validated or ended. There is one per row:
it is the table's key.

A result counts if the transaction that stores it finds the row's lease in that runner's name, and removes it. So clocks
decide when a gateway is given up, and never whether a result counts: one that was given up and did not notice (it was
stopped, cut off, its clock is wrong) finds its leases gone, whatever time it is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Double,
    delete,
    exists,
    extract,
    func,
    insert,
    or_,
    select,
    update,
)

from gateway.offline.database.schema import leases, rows, runners
from gateway.offline.store import batches
from gateway.offline.store.records import RowState
from gateway.protocol.errors import UnavailableError

WHOLE = -1  # instead of a row's index: the batch itself

_log = logging.getLogger("hocket.offline")


class HeldElsewhereError(UnavailableError):
    """Another gateway validates or ends this batch."""

    default_code = "batch_held_elsewhere"


class Leases:
    """Of one gateway. What takes a connection belongs to the writer's thread, inside a transaction."""

    def __init__(self, name: str, seconds: float) -> None:
        """name: for the log. seconds: without a renewal until others may take over."""
        self.name, self.seconds = name, seconds
        self.runner = 0  # 0: not joined
        self.num_runners = 1  # at the last renewal, this one among them
        self.is_leader = False  # at the last renewal: the one that has been there for longest
        self.num_refused = 0  # results of rows that had been given to others

    # Runners

    def join(self, connection: Connection) -> None:
        """As somebody new."""
        values = {"name": self.name, "expires_at": _now() + self.seconds}
        self.runner = connection.scalar(insert(runners).values(values).returning(runners.c.sequence)) or 0
        self._look(connection)

    def renew(self, connection: Connection) -> None:
        """And gives up whoever has not done so in time."""
        mine = update(runners).where(runners.c.sequence == self.runner).values(expires_at=_now() + self.seconds)
        if not connection.execute(mine).rowcount:
            self._join_again(connection)
        gone = delete(runners).where(runners.c.expires_at < _now()).returning(runners.c.name)
        for name in connection.scalars(gone):
            _log.warning("The gateway %s is gone: its rows are run by others", name)
        self._look(connection)

    def leave(self, connection: Connection) -> None:
        """What it had is free at once."""
        connection.execute(delete(runners).where(runners.c.sequence == self.runner))

    def _join_again(self, connection: Connection) -> None:
        _log.error("This gateway was silent for too long: others have taken over its rows")
        self.join(connection)

    def _ensure_joined(self, connection: Connection) -> None:
        if connection.scalar(select(runners.c.sequence).where(runners.c.sequence == self.runner)) is None:
            self._join_again(connection)

    def _look(self, connection: Connection) -> None:
        first, self.num_runners = connection.execute(select(func.min(runners.c.sequence), func.count())).one()
        self.is_leader = first == self.runner

    # Rows

    def elsewhere(self, sequence: int) -> ColumnElement[bool]:
        """Whether a row of that batch, in a query of rows, is somebody else's."""
        is_same = (leases.c.batch_sequence == sequence) & (leases.c.row_index == rows.c.row_index)
        return exists().where(is_same, leases.c.runner != self.runner)

    def take(
        self, connection: Connection, batch_id: str, candidates: Sequence[int], limit: int
    ) -> tuple[list[int], int]:
        """Of these rows the first ones that are pending and nobody else's, `limit` at most: they are this gateway's.
        And how many of the candidates were looked at for that: all before were had, or are not to be had.
        """
        self._ensure_joined(connection)
        sequence = batches.sequence(connection, batch_id)
        held = (leases.c.batch_sequence == sequence) & (leases.c.row_index == rows.c.row_index)
        query = (
            select(rows.c.row_index, leases.c.runner)
            .select_from(rows.outerjoin(leases, held))
            .where(rows.c.batch_sequence == sequence, rows.c.row_index.in_(candidates))
            .where(rows.c.state == int(RowState.PENDING))
            .where(or_(leases.c.runner.is_(None), leases.c.runner == self.runner))
        )
        free = dict(connection.execute(query).all())
        taken = [index for index in candidates if index in free][:limit]
        new = [index for index in taken if free[index] is None]
        if new:
            values = [{"batch_sequence": sequence, "row_index": index, "runner": self.runner} for index in new]
            connection.execute(insert(leases), values)
        return taken, candidates.index(taken[-1]) + 1 if len(taken) == limit else len(candidates)

    def give_back(self, connection: Connection, batch_id: str) -> None:
        """All rows of that batch."""
        sequence = batches.sequence(connection, batch_id)
        connection.execute(_delete(sequence).where(leases.c.runner == self.runner, leases.c.row_index != WHOLE))

    def settle(self, connection: Connection, sequence: int, indices: Sequence[int]) -> list[int]:
        """These rows end now: those that are this gateway's, and from here on nobody's. The others do not count."""
        mine = _delete(sequence).where(leases.c.runner == self.runner, leases.c.row_index.in_(indices))
        settled = set(connection.scalars(mine.returning(leases.c.row_index)))
        self.num_refused += len(indices) - len(settled)
        return [index for index in indices if index in settled]

    # Whole batches

    def claim(self, connection: Connection, batch_id: str) -> None:
        """To validate or end it. Idempotent. Raises HeldElsewhereError."""
        self._ensure_joined(connection)
        sequence = batches.sequence(connection, batch_id)
        holder = _holder(connection, sequence)
        if holder is None:
            values = {"batch_sequence": sequence, "row_index": WHOLE, "runner": self.runner}
            connection.execute(insert(leases).values(values))
        elif holder != self.runner:
            raise HeldElsewhereError(f"Another gateway works on {batch_id}.")

    def check(self, connection: Connection, batch_id: str) -> None:
        """Raises HeldElsewhereError if this gateway has no claim to it, or none any more."""
        if _holder(connection, batches.sequence(connection, batch_id)) != self.runner:
            raise HeldElsewhereError(f"Another gateway works on {batch_id}.")

    def release(self, connection: Connection, batch_id: str) -> None:
        """The claim to it."""
        connection.execute(_delete(batches.sequence(connection, batch_id)).where(leases.c.row_index == WHOLE))

    def end(self, connection: Connection, batch_id: str) -> None:
        """It has ended: nobody has any of it."""
        connection.execute(_delete(batches.sequence(connection, batch_id)))


def _now() -> ColumnElement[float]:
    """Unix seconds, on the database's clock, which all gateways share."""
    return extract("epoch", func.clock_timestamp()).cast(Double)


def _holder(connection: Connection, sequence: int) -> int | None:
    """Who has claimed the batch."""
    query = select(leases.c.runner).where(leases.c.batch_sequence == sequence, leases.c.row_index == WHOLE)
    holder: int | None = connection.scalar(query)
    return holder


def _delete(sequence: int) -> Delete:
    return delete(leases).where(leases.c.batch_sequence == sequence)
