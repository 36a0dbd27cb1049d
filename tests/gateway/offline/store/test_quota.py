"""Whatever a tenant does, it has no more on the disk than its quota; and answers about it stay small."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import FormData
from alembic import command
from alembic.config import Config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine
from fakes.manual_clock import ManualClock
from fakes.offline_rows import begun_batch, new_batch, row_line, upload
from gateway.offline.checking.validation import MAX_SHOWN_BYTES, Validator
from gateway.offline.database import schema
from gateway.offline.database.database import Database, database_url
from gateway.offline.running.fair_share import LookAhead
from gateway.offline.running.runner import OfflineRunner
from gateway.offline.store.accounts import FILE_BYTES, RECORD_BYTES, Quota
from gateway.offline.store.lines import RowError, error_line
from gateway.offline.store.records import TERMINAL, BatchRecord, BatchStatus, CheckedRow, RowResult
from gateway.offline.store.rows import PAGE_BYTES
from gateway.offline.store.store import KEEP_RECORD_SECONDS, KEEP_ROWS_SECONDS, OfflineStore
from gateway.protocol.errors import ConflictError, NotFoundError, QuotaError

QUOTA = Quota(max_bytes=250_000, max_pending_rows=10_000)
TENANT = "alice"
LOOK_AHEAD = LookAhead(max_rows=8, max_tokens=9999, max_lag_tokens=9)
type_of_open = Callable[..., Awaitable[OfflineStore]]

sizes = st.sampled_from([0, 1, 500, 5_000, 60_000, 140_000])
which = st.integers(0, 5)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("upload"), sizes),
        st.tuples(st.just("begin upload"), sizes),
        st.tuples(st.just("end uploads")),
        st.tuples(st.just("delete"), which),
        st.tuples(st.just("batch"), st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 100, 512])),
        st.tuples(st.just("errors"), which, sizes),
        st.tuples(st.just("finish"), which, st.integers(0, 11), sizes, st.booleans()),
        st.tuples(st.just("end"), which, st.sampled_from(sorted(TERMINAL))),
        st.tuples(st.just("sweep"), st.sampled_from([1, KEEP_ROWS_SECONDS + 1, KEEP_RECORD_SECONDS + 1])),
    ),
    max_size=40,
)


class Hoarder:
    """A tenant that stores what it can, and what is on the disk for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(1_700_000_000.0)
        self.store = OfflineStore.open(path, None, QUOTA, now=self.clock)
        self.files: list[str] = []
        self.batches: list[BatchRecord] = []
        self.uploads = AsyncExitStack()

    def bytes_on_disk(self) -> int:
        files = sum(path.stat().st_size for name in ("files", "parts") for path in (self.path / name).iterdir())
        stored = (
            "SELECT coalesce(sum(length(line) + 24), 0) FROM results",
            "SELECT coalesce(sum(length(custom_id) + 24), 0) FROM rows",
            "SELECT coalesce(sum(coalesce(length(errors), 0) + coalesce(length(metadata), 0) + 300), 0) FROM batches",
            "SELECT coalesce(sum(length(body) + length(url) + 100), 0) FROM webhooks",
            "SELECT coalesce(sum(length(filename) + 150), 0) FROM files",
        )
        with self.store._database.reading() as connection:
            return files + sum(int(connection.scalar(text(query)) or 0) for query in stored)

    async def do(self, name: str, *arguments: Any) -> None:
        with contextlib.suppress(QuotaError, NotFoundError, ConflictError, ValueError, IndexError):
            await getattr(self, name.replace(" ", "_"))(*arguments)

    async def upload(self, size: int) -> None:
        self.files.append(await upload(self.store, bytes(size), TENANT))

    async def begin_upload(self, size: int) -> None:
        part = await self.uploads.enter_async_context(self.store.upload(TENANT))
        for _ in range(10):
            await part.write(bytes(size))

    async def end_uploads(self) -> None:
        await self.uploads.aclose()

    async def delete(self, index: int) -> None:
        await self.store.delete_file(TENANT, self.files.pop(index))

    async def batch(self, num_good: int, num_bad: int, id_length: int) -> None:
        self.files.append(await upload(self.store, b"{}" * num_good, TENANT))
        batch = await new_batch(self.store, self.files[-1], TENANT, metadata={"note": "x" * id_length})
        self.batches.append(batch)
        checked = []
        for index in range(num_good + num_bad):
            custom_id = "\x01" * id_length
            bad = error_line(batch.id, index, custom_id, RowError("bad", "x" * id_length, line=index + 1))
            checked.append(CheckedRow(index, custom_id, 0, 2, bad if index >= num_good else None))
        await self.store.add_rows(batch, checked)
        await self.store.begin_batch(batch.id, model="demo", errors=None)

    async def errors(self, index: int, size: int) -> None:
        errors = json.dumps([{"message": "x" * min(size, MAX_SHOWN_BYTES)}] * 2).encode()
        await self.store.begin_batch(self.batches[index].id, model=None, errors=errors)

    async def finish(self, index: int, row: int, size: int, is_error: bool) -> None:
        await self.store.finish_rows([RowResult(self.batches[index].id, row, is_error, b"x" * size)])

    async def end(self, index: int, outcome: BatchStatus) -> None:
        await self.store.finalize(self.batches[index].id, outcome)

    async def sweep(self, seconds: int) -> None:
        self.clock.now += seconds
        await self.store.sweep()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(history=operations)
def test_whatever_a_tenant_does_its_bytes_stay_within_the_quota(history: list[tuple[Any, ...]]) -> None:
    async def live() -> None:
        with tempfile.TemporaryDirectory() as folder:
            hoarder = Hoarder(Path(folder) / "data")
            for operation in history:
                await hoarder.do(*operation)
                stored = (await hoarder.store.usage(TENANT)).num_bytes
                assert hoarder.bytes_on_disk() <= stored <= QUOTA.max_bytes
            await hoarder.uploads.aclose()
            await hoarder.store.close()

    asyncio.run(live())


async def test_uploads_that_are_open_count_while_they_come(open_store: type_of_open, tmp_path: Path) -> None:
    store = await open_store(quota=Quota(5_000_000, 10))
    refused = 0
    async with AsyncExitStack() as uploads:
        for _ in range(6):
            try:
                part = await uploads.enter_async_context(store.upload(TENANT))
                for _ in range(3):
                    await part.write(bytes(2**20))
            except QuotaError:
                refused += 1
        assert refused
        on_disk = sum(path.stat().st_size for path in (tmp_path / "data" / "parts").iterdir())
        assert on_disk <= 5_000_000
        async with store.upload("bob") as part:
            await part.write(bytes(2**20))
    assert (await store.usage(TENANT)).num_bytes == 0
    await upload(store, bytes(4_900_000), TENANT)


async def test_an_upload_that_just_fits_is_taken_piece_by_piece(open_store: type_of_open) -> None:
    store = await open_store(quota=Quota(3_000_000 + FILE_BYTES, 10))
    async with store.upload(TENANT) as part:
        for _ in range(30):
            await part.write(bytes(100_000))
        await store.create_file(part, tenant=TENANT, purpose="batch", filename="a", expires_after=None)
    with pytest.raises(QuotaError):
        await upload(store, b"", TENANT)


async def test_nothing_begins_once_the_quota_is_used(open_store: type_of_open) -> None:
    store = await open_store(quota=Quota(100_000, 10))
    file_id = await upload(store, bytes(90_000), TENANT)
    with pytest.raises(QuotaError) as refused:
        await new_batch(store, file_id, TENANT)
    assert refused.value.code == "storage_quota_exceeded"
    with pytest.raises(QuotaError):
        async with store.upload(TENANT) as part:
            await part.write(bytes(2**20))
    await store.delete_file(TENANT, file_id)
    await begun_batch(store, 1, tenant=TENANT)


async def test_batches_that_fail_cost_what_they_leave(open_store: type_of_open) -> None:
    """The review's: one file of bad rows, and batches of it until the disk is full."""
    store = await open_store(quota=Quota(400_000, 10_000))
    file_id = await upload(store, b"".join(b'{"custom_id": "%d"}\n' % i for i in range(40)), TENANT)
    validator = asyncio.create_task(Validator(store, ["demo"], 5000, 10_000).run())
    num_created = 0
    with contextlib.suppress(QuotaError):
        for _ in range(30):
            batch = await new_batch(store, file_id, TENANT)
            num_created += 1
            await failed(store, batch)
    validator.cancel()
    await asyncio.gather(validator, return_exceptions=True)
    assert 1 <= num_created < 20
    assert (await store.usage(TENANT)).num_bytes <= 400_000


async def failed(store: OfflineStore, batch: BatchRecord) -> None:
    while True:
        store.changed.clear()
        if not (await store.batch(batch.tenant, batch.id)).is_open:
            return
        await asyncio.wait_for(store.changed.wait(), 60)


async def test_records_are_forgotten_and_give_their_bytes_back(open_store: type_of_open) -> None:
    clock = ManualClock(1_700_000_000.0)
    store = await open_store(now=clock)
    batch = await begun_batch(store, 3, tenant=TENANT)
    await store.finalize(batch.id, BatchStatus.CANCELLED)
    await store.delete_file(TENANT, batch.input_file_id)
    clock.now += KEEP_ROWS_SECONDS + 1
    await store.sweep()
    record = await store.batch(TENANT, batch.id)
    await store.delete_file(TENANT, record.error_file_id or "")
    assert (await store.usage(TENANT)).num_bytes == RECORD_BYTES + len(b"{}")
    clock.now += KEEP_RECORD_SECONDS
    await store.sweep()
    assert (await store.usage(TENANT)).num_bytes == 0
    with pytest.raises(NotFoundError):
        await store.batch(TENANT, batch.id)


async def test_rows_of_a_tenant_without_space_wait_and_others_run(
    open_store: type_of_open, make_services: Callable[..., Any]
) -> None:
    store = await open_store(quota=Quota(200_000, 1000))
    waiting = await begun_batch(store, 5, tenant=TENANT)
    kept = await upload(store, bytes(166_000), TENANT)
    other = await begun_batch(store, 5, tenant="bob")
    runner = OfflineRunner(make_services(FakeEngine()).serving, store, LOOK_AHEAD, 1)
    running = asyncio.create_task(runner.run())
    await eventually(lambda: runner.metrics.num_batches_ended["completed"] == 1, 60)
    assert (await store.batch("bob", other.id)).num_completed == 5
    assert runner.metrics.num_batches_short_of_space == 1
    assert (await store.batch(TENANT, waiting.id)).num_completed == 0
    await store.delete_file(TENANT, kept)
    store.changed.set()
    await eventually(lambda: runner.metrics.num_batches_ended["completed"] == 2, 60)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await runner.close()


async def test_a_result_that_the_quota_has_no_room_for_fails_its_row(
    open_store: type_of_open, make_services: Callable[..., Any]
) -> None:
    store = await open_store(quota=Quota(60_000, 1000))
    batch = await begun_batch(store, 4, tenant=TENANT, extra={"prompt": "x" * 2000, "max_tokens": 2000, "n": 4})
    runner = OfflineRunner(make_services(FakeEngine()).serving, store, LOOK_AHEAD, 1)
    running = asyncio.create_task(runner.run())
    await eventually(lambda: runner.metrics.num_batches_ended["completed"] == 1, 60)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await runner.close()
    record = await store.batch(TENANT, batch.id)
    assert record.num_completed >= 1
    assert record.num_failed >= 1
    errors = [json.loads(line) for line in store.path(record.error_file_id or "").read_bytes().splitlines()]
    assert {line["response"]["body"]["error"]["code"] for line in errors} == {"storage_quota_exceeded"}
    assert (await store.usage(TENANT)).num_bytes <= 60_000


# Answers


async def test_pages_are_bounded_in_bytes(open_store: type_of_open) -> None:
    store = await open_store()
    batch = await begun_batch(store, 12)
    line = b'"' + b"x" * (PAGE_BYTES // 4) + b'"'
    await store.finish_rows([RowResult(batch.id, i, False, line) for i in range(10)])
    await store.finish_rows([RowResult(batch.id, i, False, line * 8) for i in range(10, 12)])
    cursor, pages = 0, []
    has_more = True
    while has_more:
        _, landed, has_more = await store.landed("", batch.id, cursor, 1000)
        pages.append(len(landed))
        cursor = landed[-1].cursor
        assert len(landed) == 1 or sum(len(row.line) for row in landed) <= PAGE_BYTES
    assert sum(pages) == 12
    assert (await store.landed("", batch.id, cursor, 1000))[1:] == ([], False)
    ended = await store.finalize(batch.id)
    assert store.path(ended.output_file_id or "").stat().st_size == 10 * (len(line) + 1) + 2 * (8 * len(line) + 1)


@pytest.mark.parametrize("limit", [1, 20, 100])
async def test_a_list_of_batches_is_bounded_whatever_their_errors_say(
    serve: Callable[..., Awaitable[Any]], tmp_path: Path, limit: int
) -> None:
    """The review's rows: names of models as long as a line may be."""
    client = await serve(FakeEngine(is_ready=False), data_dir=str(tmp_path / "served"))
    bad = b"".join(row_line(f"r{i}", {"model": "m" * 100_000, "prompt": "p"}) for i in range(150))
    form = FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", io.BytesIO(bad), filename="rows.jsonl")
    file_id = (await (await client.post("/v1/files", data=form)).json())["id"]
    body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    metadata = {f"{i:064}": "\x7f" * 512 for i in range(16)}
    for _ in range(2):
        created = await (await client.post("/v1/batches", json=body | {"metadata": metadata})).json()
        assert created["status"] == "validating"
    await eventually_all_failed(client)
    response = await client.get("/v1/batches", params={"limit": limit})
    answer = await response.read()
    assert len(answer) <= 110_000 * limit
    assert len(answer) <= 1_200_000
    shown = json.loads(answer)["data"][0]["errors"]["data"]
    assert shown[-1]["code"] == "more_errors"
    assert max(len(error["message"]) for error in shown) <= 500
    assert len(json.dumps(shown)) <= 2 * MAX_SHOWN_BYTES


async def eventually_all_failed(client: Any) -> None:
    async with asyncio.timeout(60):
        while True:
            batches = (await (await client.get("/v1/batches")).json())["data"]
            if all(batch["status"] == "failed" for batch in batches):
                return
            await asyncio.sleep(0.05)


async def test_a_page_of_batches_ends_where_it_has_said_enough(
    store: OfflineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.offline.store.batches.PAGE_BYTES", 30_000)
    batches = [await begun_batch(store, 1) for _ in range(7)]
    for batch in batches:
        await store.begin_batch(batch.id, model=None, errors=b"x" * 12_000)
    seen: list[str] = []
    has_more = True
    while has_more:
        page, has_more = await store.list_batches("", after=seen[-1] if seen else None, limit=100)
        assert 1 <= len(page) <= 2
        seen += [record.id for record in page]
    assert seen == [batch.id for batch in reversed(batches)]
    assert all(record.errors is None for record in await store.open_batches())


def test_an_old_database_gets_its_bytes_counted_and_its_errors_cut(
    tmp_path: Path, new_url: Callable[[], str | None]
) -> None:
    url = database_url(new_url() or f"sqlite:///{tmp_path / 'store.db'}")
    errors = json.dumps([{"code": "c", "message": "m" * 5000, "param": None, "line": i} for i in range(1000)])
    engine = create_engine(url)
    config = Config()
    config.set_main_option("script_location", str(Path(schema.__file__).with_name("migrations")))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        columns = "id, tenant, endpoint, input_file_id, completion_window, window_seconds, status, created_at"
        counts = "num_rows, num_completed, num_failed, input_tokens, cached_tokens, output_tokens, has_rows, errors"
        connection.execute(
            text(
                f"INSERT INTO batches ({columns}, expires_at, {counts}) VALUES "
                "('b', 't', 'e', 'f', '1d', 1, 'in_progress', 1, 2, 2, 1, 0, 0, 0, 0, true, :errors)"
            ),
            {"errors": errors},
        )
        for index in range(2):
            connection.execute(text(f"INSERT INTO rows VALUES (1, {index}, 'r{index}', 0, 1, 0)"))
        result = "INSERT INTO results (batch_sequence, row_index, is_error, line) VALUES (1, 0, false, :line)"
        connection.execute(text(result), {"line": b"x" * 700})
        hook = "INSERT INTO webhooks (id, tenant, url, is_trusted, body, num_attempts, due_at) VALUES "
        connection.execute(text(hook + "('e', 't', 'https://Example.com:81/x?y', true, :body, 0, 0)"), {"body": b"{}"})
    engine.dispose()
    database = Database(url)
    with database.reading() as connection:
        stored, kept = connection.execute(text("SELECT stored_bytes, errors FROM batches")).one()
        assert connection.scalar(text("SELECT receiver FROM webhooks")) == "example.com:81"
    database.close()
    assert len(kept) < 40_000
    assert json.loads(kept)[-1]["message"].startswith("941 more lines")
    assert stored == RECORD_BYTES + 2 * FILE_BYTES + len(kept) + 2 * (2560 + 13 * 2) + 2 * 700
