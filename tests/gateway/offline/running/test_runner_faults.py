"""What is wrong with one row, one batch or one page of the disk concerns nobody else."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from fakes.damaged_sqlite import overwrite_pages
from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine
from fakes.offline_rows import begun_batch
from gateway.offline.database.failures import DamagedError
from gateway.offline.running import open_batch, result_commit
from gateway.offline.running.fair_share import LookAhead
from gateway.offline.running.row_queue import RowQueue
from gateway.offline.running.runner import OfflineRunner
from gateway.offline.store.accounts import Quota
from gateway.offline.store.records import BatchRecord, BatchStatus
from gateway.offline.store.store import OfflineStore
from gateway.protocol.errors import UnavailableError

QUOTA = Quota(2**30, 10**6)
LOOK_AHEAD = LookAhead(max_rows=8, max_tokens=10_000, max_lag_tokens=10_000)
type_of_open = Callable[..., Awaitable[OfflineStore]]
type_of_services = Callable[..., Any]

SQLITE_TRIGGER = """
    CREATE TRIGGER refusal BEFORE INSERT ON results
    WHEN {condition} BEGIN SELECT RAISE(ABORT, 'a rule of the database'); END
"""
POSTGRESQL_TRIGGER = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'a rule of the database' USING ERRCODE = '{state}'; END $$;
    CREATE TRIGGER refusal BEFORE INSERT ON results FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse()
"""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_commit, "BLOCKED_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(result_commit, "STUCK_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(open_batch, "TROUBLE_SECONDS", (0.01, 0.01))


@asynccontextmanager
async def running(services: Any, store: OfflineStore) -> AsyncIterator[OfflineRunner]:
    runner = OfflineRunner(services.serving, store, LOOK_AHEAD, 4)
    task = asyncio.create_task(runner.run())
    try:
        yield runner
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runner.close()


async def refuse_results(store: OfflineStore, condition: str, state: str = "23514") -> None:
    """The database takes no result of that kind; `NEW` is the result. state: PostgreSQL's code for it."""
    is_sqlite = "sqlite" in store._database.name
    statement = (SQLITE_TRIGGER if is_sqlite else POSTGRESQL_TRIGGER).format(condition=condition, state=state)
    await store._threads.write(lambda connection: connection.execute(text(statement)))


async def accept_results(store: OfflineStore) -> None:
    suffix = "" if "sqlite" in store._database.name else " ON results"
    await store._threads.write(lambda connection: connection.execute(text(f"DROP TRIGGER refusal{suffix}")))


async def ended(store: OfflineStore, batch: BatchRecord) -> BatchRecord:
    async with asyncio.timeout(60):
        while True:
            if not (record := await store.batch(batch.tenant, batch.id)).is_open:
                return record
            await asyncio.sleep(0.01)


def lines(store: OfflineStore, file_id: str | None) -> list[dict[str, Any]]:
    return [] if file_id is None else [json.loads(line) for line in store.path(file_id).read_bytes().splitlines()]


async def test_a_result_that_the_database_refuses_fails_alone(
    store: OfflineStore, make_services: type_of_services
) -> None:
    mine = await begun_batch(store, 12, tenant="alice", extra={"max_tokens": 2})
    large = await begun_batch(store, 1, tenant="alice", extra={"prompt": "x" * 2000, "max_tokens": 2050})
    other = await begun_batch(store, 3, tenant="bob", extra={"max_tokens": 2})
    await refuse_results(store, "length(NEW.line) > 2000")
    async with running(make_services(FakeEngine()), store) as runner:
        assert (await ended(store, other)).num_completed == 3
        assert (await ended(store, mine)).num_completed == 12
        record = await ended(store, large)
    assert (record.status, record.num_completed, record.num_failed) == (BatchStatus.COMPLETED, 0, 1)
    error = lines(store, record.error_file_id)[0]["response"]
    assert error["status_code"] == 500
    assert error["body"]["error"]["code"] == "database_refused"
    assert "a rule of the database" in error["body"]["error"]["message"]
    assert not runner.metrics.is_store_blocked
    assert runner.metrics.num_rows_ended == {"completed": 15, "failed": 1}


async def test_a_value_larger_than_the_driver_takes_fails_alone(
    open_store: type_of_open, make_services: type_of_services
) -> None:
    """As the review sent it: SQLite with a lower limit of bytes per value."""
    store = await open_store()
    if "postgresql" in store._database.name:
        pytest.skip("the limit is SQLite's")
    large = await begun_batch(store, 1, tenant="alice", extra={"prompt": "x" * 2000, "max_tokens": 2050})
    other = await begun_batch(store, 3, tenant="bob")
    with limited_values(store, 2000):
        async with running(make_services(FakeEngine()), store):
            assert (await ended(store, other)).num_completed == 3
            assert (await ended(store, large)).num_failed == 1


@contextmanager
def limited_values(store: OfflineStore, num_bytes: int) -> Iterator[None]:
    def limit(connection: sqlite3.Connection, *_: object) -> None:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, num_bytes)

    engine = store._database._engine
    event.listen(engine, "checkout", limit)
    yield
    event.remove(engine, "checkout", limit)


async def test_a_row_whose_error_cannot_be_stored_either_is_tried_again_while_others_go_on(
    store: OfflineStore, make_services: type_of_services
) -> None:
    stuck = await begun_batch(store, 20, tenant="alice")
    others = [await begun_batch(store, 5, tenant="bob") for _ in range(3)]
    await refuse_results(store, "NEW.batch_sequence = 1 AND NEW.row_index = 3")
    async with running(make_services(FakeEngine()), store) as runner:
        for other in others:
            assert (await ended(store, other)).num_completed == 5
        await eventually(lambda: runner.metrics.num_stuck_rows == 1)
        await eventually(lambda: runner.metrics.num_delayed_batches == 1)
        assert (await store.batch("alice", stuck.id)).is_open
        late = await begun_batch(store, 5, tenant="carol")
        assert (await ended(store, late)).num_completed == 5
        await accept_results(store)
        record = await ended(store, stuck)
    assert (record.num_completed, record.num_failed) == (19, 1)
    assert runner.metrics.num_stuck_rows == 0


async def test_a_batch_with_a_row_that_is_stuck_can_be_cancelled(
    store: OfflineStore, make_services: type_of_services
) -> None:
    stuck = await begun_batch(store, 4)
    await refuse_results(store, "NEW.row_index = 3")
    async with running(make_services(FakeEngine()), store) as runner:
        await eventually(lambda: runner.metrics.num_stuck_rows == 1)
        await store.cancel_batch("", stuck.id)
        record = await ended(store, stuck)
        assert runner.metrics.num_stuck_rows == 0
    assert (record.status, record.num_completed) == (BatchStatus.CANCELLED, 3)
    assert lines(store, record.error_file_id)[0]["custom_id"] == "r3"


async def test_damage_that_a_write_meets_concerns_its_row(store: OfflineStore, make_services: type_of_services) -> None:
    if "sqlite" in store._database.name:
        pytest.skip("SQLite's pages are overwritten below")
    hit = await begun_batch(store, 3, tenant="alice")
    other = await begun_batch(store, 3, tenant="bob")
    await refuse_results(store, "NEW.batch_sequence = 1", state="XX001")
    async with running(make_services(FakeEngine()), store) as runner:
        assert (await ended(store, other)).num_completed == 3
        await eventually(lambda: runner.metrics.num_stuck_rows == 3)
        await accept_results(store)
        assert (await ended(store, hit)).num_failed == 3


async def test_a_database_that_is_away_is_told_from_a_group_that_is_refused(
    store: OfflineStore, make_services: type_of_services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that looks like trouble with the connection, each time that one row is handed in."""
    bad = await begun_batch(store, 4, tenant="alice")
    other = await begun_batch(store, 4, tenant="bob")
    finish = store.finish_rows

    async def finish_others(results: Any) -> None:
        if any(result.batch_id == bad.id and result.index == 2 for result in results):
            raise UnavailableError("It is not there.")
        await finish(results)

    monkeypatch.setattr(store, "finish_rows", finish_others)
    async with running(make_services(FakeEngine()), store) as runner:
        assert (await ended(store, other)).num_completed == 4
        await eventually(lambda: runner.metrics.num_stuck_rows == 1)
        assert not runner.metrics.is_store_blocked


async def test_rows_that_cannot_be_read_delay_their_own_batch_alone(
    store: OfflineStore, make_services: type_of_services, monkeypatch: pytest.MonkeyPatch
) -> None:
    hit = await begun_batch(store, 4, tenant="alice")
    other = await begun_batch(store, 40, tenant="bob")
    take, is_damaged = RowQueue.take, True

    async def take_or_not(queue: RowQueue, node: str | None) -> Any:
        if queue._batch_id == hit.id and is_damaged:
            raise DamagedError("A page is gone.")
        return await take(queue, node)

    monkeypatch.setattr(RowQueue, "take", take_or_not)
    async with running(make_services(FakeEngine()), store) as runner:
        assert (await ended(store, other)).num_completed == 40
        assert (await store.batch("alice", hit.id)).is_open
        assert runner.metrics.num_delayed_batches == 1
        is_damaged = False
        assert (await ended(store, hit)).num_completed == 4


async def test_a_batch_whose_input_file_is_gone_keeps_nobody_waiting(
    store: OfflineStore, make_services: type_of_services
) -> None:
    hit = await begun_batch(store, 4, tenant="alice")
    other = await begun_batch(store, 4, tenant="bob")
    store.path(hit.input_file_id).unlink()
    async with running(make_services(FakeEngine()), store) as runner:
        assert (await ended(store, other)).num_completed == 4
        await eventually(lambda: runner.metrics.num_delayed_batches == 1)
        await store.cancel_batch("alice", hit.id)


@pytest.mark.parametrize(
    ("what", "marker", "kinds"), [("rows", b"r700", (0x0A,)), ("results", b"damaged-result 0250", (0x0D,))]
)
async def test_overwritten_pages_concern_the_batch_that_lies_on_them(
    make_services: type_of_services, tmp_path: Path, what: str, marker: bytes, kinds: tuple[int, ...]
) -> None:
    store = OfflineStore.open(tmp_path / "data", None, QUOTA)
    hit = await begun_batch(store, 1500, tenant="alice")
    finished = [
        result_commit.RowResult(hit.id, i, False, b'"damaged-result %04d"' % i + bytes(200)) for i in range(500)
    ]
    await store.finish_rows(finished)
    other = await begun_batch(store, 5, tenant="bob")
    await store.close()
    assert overwrite_pages(tmp_path / "data" / "store.db", marker, kinds)
    store = OfflineStore.open(tmp_path / "data", None, QUOTA)
    async with running(make_services(FakeEngine()), store) as runner:
        assert (await ended(store, other)).num_completed == 5
        new = await begun_batch(store, 5, tenant="carol")
        assert (await ended(store, new)).num_completed == 5
        if what == "results":
            await eventually(lambda: runner.metrics.num_rows_ended["completed"] == 1010)
        await eventually(lambda: runner.metrics.num_delayed_batches == 1)
        assert not runner.metrics.is_store_blocked
        assert (await store.batch("alice", hit.id)).is_open
    await store.close()


async def test_overwritten_records_of_batches_leave_the_others_running(
    make_services: type_of_services, tmp_path: Path
) -> None:
    store = OfflineStore.open(tmp_path / "data", None, QUOTA)
    batches = [await begun_batch(store, 1, metadata={"note": f"note{i:03}" + "x" * 500}) for i in range(90)]
    await store.close()
    assert overwrite_pages(tmp_path / "data" / "store.db", b"note045", (0x0D,)) == 1
    store = OfflineStore.open(tmp_path / "data", None, QUOTA)
    assert 75 < len(await store.open_batches()) < 90
    async with running(make_services(FakeEngine()), store):
        for batch in batches[:24] + batches[66:]:  # a record near the damaged page may need it to grow
            assert (await ended(store, batch)).num_completed == 1
    await store.close()


async def test_an_answer_beyond_the_limit_fails_and_says_what_to_do(
    store: OfflineStore, make_services: type_of_services
) -> None:
    extra: dict[str, object] = {"prompt": "x" * 500, "max_tokens": 500, "n": 4, "logprobs": 2}
    large = await begun_batch(store, 1, extra=extra)
    small = await begun_batch(store, 1)
    async with running(make_services(FakeEngine(), max_result_bytes=20_000), store):
        assert (await ended(store, small)).num_completed == 1
        record = await ended(store, large)
    error = lines(store, record.error_file_id)[0]["response"]
    assert (error["status_code"], error["body"]["error"]["code"]) == (400, "result_too_large")
    assert "fewer choices" in error["body"]["error"]["message"]


async def test_a_batch_that_ends_as_soon_as_it_is_begun_is_forgotten_once(
    store: OfflineStore, make_services: type_of_services
) -> None:
    """A cancelling batch after a restart: it is opened, and ended before its opening's callback has run."""
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    batches = [await begun_batch(store, 1) for _ in range(8)]
    for batch in batches:
        await store.cancel_batch("", batch.id)
    async with running(make_services(FakeEngine()), store) as runner:
        for batch in batches:
            assert (await ended(store, batch)).status is BatchStatus.CANCELLED
        await eventually(lambda: not runner._tasks)
    asyncio.get_running_loop().set_exception_handler(None)
    assert problems == []
