"""SQL of rows and their results. A row finishes once: whoever comes second changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, func, select, update

from gateway.offline.database.schema import results, rows
from gateway.offline.store import batches
from gateway.offline.store.accounts import line_bytes, row_bytes
from gateway.offline.store.leases import Leases
from gateway.offline.store.records import CheckedRow, RowResult, RowState, TokenUsage

_MAX_VARIABLES = 500  # of one IN list
PAGE_BYTES = 8 * 2**20  # of lines that are read at a time
_DROP_ROWS = 5000  # per transaction, so that others need not wait for long


@dataclass(frozen=True, slots=True)
class RowPlace:
    index: int
    custom_id: str
    body_offset: int
    body_length: int


def add(connection: Connection, batch_id: str, checked: Sequence[CheckedRow]) -> None:
    sequence = batches.sequence(connection, batch_id)
    connection.execute(
        rows.insert(),
        [
            {
                "batch_sequence": sequence,
                "row_index": row.index,
                "custom_id": row.custom_id,
                "body_offset": row.body_offset,
                "body_length": row.body_length,
                "state": int(RowState.PENDING if row.error_line is None else RowState.FAILED),
            }
            for row in checked
        ],
    )
    bad = [(row.index, row.error_line) for row in checked if row.error_line is not None]
    if bad:
        _add_results(connection, sequence, [(index, True, line) for index, line in bad])
    record = batches.get(connection, batch_id)
    num_rows, num_failed = record.num_rows + len(checked), record.num_failed + len(bad)
    batches.change(connection, batch_id, num_rows=num_rows, num_failed=num_failed)
    batches.store_bytes(connection, batch_id, sum(map(row_bytes, checked)))


def pending(
    connection: Connection, batch_id: str, after_index: int, limit: int, leases: Leases | None = None
) -> list[RowPlace]:
    """In order of index. With leases: those that are no other gateway's."""
    query = _pending(connection, batch_id).where(rows.c.row_index > after_index)
    if leases is not None:
        query = query.where(~leases.elsewhere(batches.sequence(connection, batch_id)))
    return [RowPlace(*row) for row in connection.execute(query.order_by(rows.c.row_index).limit(limit))]


def pending_among(connection: Connection, batch_id: str, indices: Sequence[int]) -> list[RowPlace]:
    """Those of these rows that are pending, in the order of `indices`."""
    query = _pending(connection, batch_id)
    found: dict[int, RowPlace] = {}
    for start in range(0, len(indices), _MAX_VARIABLES):
        some = query.where(rows.c.row_index.in_(indices[start : start + _MAX_VARIABLES]))
        found |= {row.row_index: RowPlace(*row) for row in connection.execute(some)}
    return [found[index] for index in indices if index in found]


def _pending(connection: Connection, batch_id: str) -> Select[Any]:
    columns = rows.c
    return select(columns.row_index, columns.custom_id, columns.body_offset, columns.body_length).where(
        columns.batch_sequence == batches.sequence(connection, batch_id), columns.state == int(RowState.PENDING)
    )


def finish(connection: Connection, finished: Sequence[RowResult], leases: Leases | None = None) -> None:
    """Results of rows that are not pending, or of no batch, are dropped; with leases also others' rows'."""
    of_batch: dict[str, dict[int, RowResult]] = {}
    for result in finished:
        of_batch.setdefault(result.batch_id, {}).setdefault(result.index, result)
    for batch_id, sequence in batches.sequences(connection, of_batch).items():
        _finish(connection, sequence, of_batch[batch_id], leases)


def _finish(connection: Connection, sequence: int, of_index: dict[int, RowResult], leases: Leases | None) -> None:
    indices = sorted(of_index) if leases is None else leases.settle(connection, sequence, sorted(of_index))
    new = [of_index[index] for index in _still_pending(connection, sequence, indices)]
    if not new:
        return
    states = [{"index": row.index, "new_state": int(RowState.FAILED if row.is_error else RowState.DONE)} for row in new]
    change = update(rows).where(rows.c.batch_sequence == sequence, rows.c.row_index == bindparam("index"))
    connection.execute(change.values(state=bindparam("new_state")), states)
    _add_results(connection, sequence, [(row.index, row.is_error, row.line) for row in new])
    num_failed = sum(row.is_error for row in new)
    num_bytes = sum(line_bytes(len(row.line)) for row in new)
    batches.count(connection, sequence, len(new) - num_failed, num_failed, _sum([row.usage for row in new]), num_bytes)


def _still_pending(connection: Connection, sequence: int, indices: list[int]) -> list[int]:
    found: list[int] = []
    for start in range(0, len(indices), _MAX_VARIABLES):
        some = indices[start : start + _MAX_VARIABLES]
        is_wanted = (rows.c.batch_sequence == sequence) & rows.c.row_index.in_(some)
        found += connection.scalars(select(rows.c.row_index).where(is_wanted, rows.c.state == int(RowState.PENDING)))
    return found


def _add_results(connection: Connection, sequence: int, lines: list[tuple[int, bool, bytes]]) -> None:
    values = [
        {"batch_sequence": sequence, "row_index": index, "is_error": is_error, "line": line}
        for index, is_error, line in lines
    ]
    connection.execute(results.insert(), values)


def _sum(usages: list[TokenUsage]) -> TokenUsage:
    return TokenUsage(
        input_tokens=sum(usage.input_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
    )


def close(connection: Connection, batch_id: str, state: RowState) -> None:
    """Those that are still pending."""
    is_pending = (rows.c.batch_sequence == batches.sequence(connection, batch_id)) & (
        rows.c.state == int(RowState.PENDING)
    )
    connection.execute(update(rows).where(is_pending).values(state=int(state)))


@dataclass(frozen=True, slots=True)
class EndedRow:
    index: int
    custom_id: str | None
    state: RowState
    line: bytes | None  # None of a row that was closed before it ran


def ended(connection: Connection, batch_id: str, after_index: int, limit: int) -> list[EndedRow]:
    """In order of index. Fewer than `limit` if their lines take more than PAGE_BYTES, but at least one."""
    sequence = batches.sequence(connection, batch_id)
    is_same = (results.c.batch_sequence == sequence) & (results.c.row_index == rows.c.row_index)
    is_wanted = (
        (rows.c.batch_sequence == sequence) & (rows.c.row_index > after_index) & (rows.c.state != int(RowState.PENDING))
    )
    joined = rows.outerjoin(results, is_same)
    size = func.coalesce(func.length(results.c.line), 0)
    sizes = select(rows.c.row_index, size).select_from(joined).where(is_wanted).order_by(rows.c.row_index)
    fitting = _fitting([tuple(row) for row in connection.execute(sizes.limit(limit))])
    if not fitting:
        return []
    query = select(rows.c.row_index, rows.c.custom_id, rows.c.state, results.c.line).select_from(joined)
    found = connection.execute(query.where(is_wanted, rows.c.row_index <= fitting[-1]).order_by(rows.c.row_index))
    return [EndedRow(row.row_index, row.custom_id, RowState(row.state), row.line) for row in found]


@dataclass(frozen=True, slots=True)
class LandedRow:
    cursor: int
    is_error: bool
    line: bytes


def landed(connection: Connection, batch_id: str, after: int, limit: int) -> tuple[list[LandedRow], bool]:
    """In the order in which rows finished, after that cursor, and whether there are more. Fewer than `limit` if they
    take more than PAGE_BYTES, but at least one."""
    columns = results.c
    is_wanted = (columns.batch_sequence == batches.sequence(connection, batch_id)) & (columns.sequence > after)
    sizes = select(columns.sequence, func.length(columns.line)).where(is_wanted).order_by(columns.sequence)
    found = [tuple(row) for row in connection.execute(sizes.limit(limit + 1))]
    fitting = _fitting(found[:limit])
    if not fitting:
        return [], False
    query = select(columns.sequence, columns.is_error, columns.line).where(is_wanted, columns.sequence <= fitting[-1])
    page = [LandedRow(*row) for row in connection.execute(query.order_by(columns.sequence))]
    return page, len(found) > len(fitting)


def _fitting(sizes: Sequence[tuple[int, int]]) -> list[int]:
    """The first of these keys, as far as PAGE_BYTES go, and at least one."""
    fitting: list[int] = []
    num_bytes = 0
    for key, size in sizes:
        num_bytes += size
        if fitting and num_bytes > PAGE_BYTES:
            break
        fitting.append(key)
    return fitting


def drop_some(connection: Connection, batch_id: str) -> bool:
    """Some of a batch's rows and results; whether there may be more."""
    sequence = batches.sequence(connection, batch_id)
    last = connection.scalar(
        select(func.max(rows.c.row_index)).where(
            rows.c.row_index.in_(
                select(rows.c.row_index)
                .where(rows.c.batch_sequence == sequence)
                .order_by(rows.c.row_index)
                .limit(_DROP_ROWS)
            ),
            rows.c.batch_sequence == sequence,
        )
    )
    if last is None:
        return False
    for table in (results, rows):
        connection.execute(delete(table).where(table.c.batch_sequence == sequence, table.c.row_index <= last))
    return True
