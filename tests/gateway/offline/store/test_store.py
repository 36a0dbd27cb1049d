from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fakes.offline_rows import begun_batch, new_batch, result, upload
from gateway.offline.store.accounts import FILE_BYTES, Quota
from gateway.offline.store.directory import DirectoryInUseError
from gateway.offline.store.records import BatchStatus, TokenUsage
from gateway.offline.store.store import OfflineStore
from gateway.protocol.errors import ConflictError, InvalidRequestError, NotFoundError, QuotaError

type_of_open = Callable[..., Awaitable[OfflineStore]]


def lines(store: OfflineStore, file_id: str | None) -> list[dict[str, object]]:
    return [] if file_id is None else [json.loads(line) for line in store.path(file_id).read_bytes().splitlines()]


async def test_rows_come_in_order_with_their_bodies(store: OfflineStore) -> None:
    batch = await begun_batch(store, 10, bad=[2])
    rows = await store.pending_rows(batch.id, after_index=0, limit=3)
    assert [(row.index, row.custom_id) for row in rows] == [(1, "r1"), (3, "r3"), (4, "r4")]
    assert json.loads(rows[0].body) == {"prompt": "prompt 1"}
    few = await store.pending_rows(batch.id, max_bytes=1)
    assert [row.index for row in few] == [0]


async def test_a_row_finishes_once(store: OfflineStore) -> None:
    batch = await begun_batch(store, 3)
    await store.finish_rows([result(batch, 1, "first"), result(batch, 1, "twin")])
    await store.finish_rows([result(batch, 1, "second", is_error=True), result(batch, 7), result(batch, 0)])
    after = await store.batch("", batch.id)
    assert (after.num_rows, after.num_completed, after.num_failed) == (3, 2, 0)
    assert [row.index for row in await store.pending_rows(batch.id)] == [2]
    _, landed, _ = await store.landed("", batch.id, 0, 10)
    assert [json.loads(row.line)["row"] for row in landed] == [1, 0]


async def test_finished_rows_are_counted_with_their_tokens(store: OfflineStore) -> None:
    batch = await begun_batch(store, 2)
    usage = TokenUsage(input_tokens=5, cached_tokens=2, output_tokens=3)
    finished = [result(batch, i) for i in range(2)]
    await asyncio.gather(*(store.finish_rows([type(r)(r.batch_id, r.index, False, r.line, usage)]) for r in finished))
    after = await store.batch("", batch.id)
    assert after.usage == TokenUsage(input_tokens=10, cached_tokens=4, output_tokens=6)


async def test_completed_batch_has_its_files_in_order_of_rows(store: OfflineStore) -> None:
    batch = await begun_batch(store, 600, bad=[5])
    with pytest.raises(ValueError, match="pending"):
        await store.finalize(batch.id)
    await store.finish_rows([result(batch, i, is_error=i == 9) for i in reversed(range(600))])
    ended = await store.finalize(batch.id)
    assert ended.status is BatchStatus.COMPLETED
    assert (ended.num_completed, ended.num_failed) == (598, 2)
    assert [line["row"] for line in lines(store, ended.output_file_id)] == [i for i in range(600) if i not in (5, 9)]
    errors = lines(store, ended.error_file_id)
    assert errors[0]["error"] == {"code": "bad", "message": "Bad.", "line": 6}
    assert errors[1]["row"] == 9
    assert ended.output_file_id is not None
    output = await store.file("", ended.output_file_id)
    assert output.purpose == "batch_output"
    assert output.num_bytes == store.path(output.id).stat().st_size
    assert await store.finalize(batch.id, BatchStatus.EXPIRED) == ended


@pytest.mark.parametrize(
    ("outcome", "code"), [(BatchStatus.EXPIRED, "batch_expired"), (BatchStatus.CANCELLED, "batch_cancelled")]
)
async def test_rows_that_never_ran_say_why(store: OfflineStore, outcome: BatchStatus, code: str) -> None:
    batch = await begun_batch(store, 3)
    await store.finish_rows([result(batch, 1)])
    ended = await store.finalize(batch.id, outcome)
    await store.finish_rows([result(batch, 2)])
    assert ended.status is outcome
    assert [line["row"] for line in lines(store, ended.output_file_id)] == [1]
    errors = lines(store, ended.error_file_id)
    assert [(line["custom_id"], line["error"]["code"]) for line in errors] == [("r0", code), ("r2", code)]  # type: ignore[index]
    assert (await store.batch("", batch.id)).num_completed == 1


async def test_finalisation_does_not_wait_for_the_results_of_others(store: OfflineStore) -> None:
    busy, batch = await begun_batch(store, 2000), await begun_batch(store, 1)
    await store.finish_rows([result(batch, 0)])

    async def hand_in(indices: range) -> None:
        for index in indices:
            await store.finish_rows([result(busy, index)])

    others = [asyncio.create_task(hand_in(range(start, 2000, 4))) for start in range(4)]
    assert (await store.finalize(batch.id)).status is BatchStatus.COMPLETED
    assert not any(task.done() for task in others)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def test_cancelling_waits_for_whoever_runs_the_rows(store: OfflineStore) -> None:
    batch = await begun_batch(store, 2)
    store.changed.clear()
    assert (await store.cancel_batch("", batch.id)).status is BatchStatus.CANCELLING
    assert store.changed.is_set()
    await store.finish_rows([result(batch, 0)])
    ended = await store.finalize(batch.id, BatchStatus.CANCELLED)
    assert ended.num_completed == 1
    with pytest.raises(ConflictError):
        await store.cancel_batch("", batch.id)


async def test_tenants_do_not_see_each_other(store: OfflineStore) -> None:
    batch = await begun_batch(store, 1, tenant="a")
    with pytest.raises(NotFoundError):
        await store.batch("b", batch.id)
    with pytest.raises(NotFoundError):
        await store.file("b", batch.input_file_id)
    with pytest.raises(NotFoundError):
        await store.cancel_batch("b", batch.id)
    with pytest.raises(NotFoundError):
        await store.landed("b", batch.id, 0, 1)
    with pytest.raises(NotFoundError):
        await store.delete_file("b", batch.input_file_id)
    with pytest.raises(NotFoundError):
        await new_batch(store, batch.input_file_id, "b")
    assert await store.list_batches("b", limit=5) == ([], False)
    assert await store.list_files("b", limit=5, is_ascending=True) == ([], False)


async def test_lists_have_cursors(store: OfflineStore) -> None:
    ids = [await upload(store, b"x") for _ in range(5)]
    first, has_more = await store.list_files("", limit=2, is_ascending=True)
    assert ([file.id for file in first], has_more) == (ids[:2], True)
    rest, has_more = await store.list_files("", after=ids[1], limit=3, is_ascending=True)
    assert ([file.id for file in rest], has_more) == (ids[2:], False)
    newest, _ = await store.list_files("", after=ids[3], limit=9, is_ascending=False)
    assert [file.id for file in newest] == ids[2::-1]
    batches = [await new_batch(store, file_id) for file_id in ids]
    found, has_more = await store.list_batches("", after=batches[4].id, limit=2)
    assert ([batch.id for batch in found], has_more) == ([batches[3].id, batches[2].id], True)
    with pytest.raises(InvalidRequestError):
        await store.list_files("", after="file-nothing", limit=3, is_ascending=True)


async def test_file_in_use_stays(store: OfflineStore) -> None:
    batch = await begun_batch(store, 1)
    with pytest.raises(ConflictError, match=batch.id):
        await store.delete_file("", batch.input_file_id)
    await store.finalize(batch.id, BatchStatus.CANCELLED)
    await store.delete_file("", batch.input_file_id)
    assert not store.path(batch.input_file_id).exists()


async def test_quotas_of_a_tenant(open_store: type_of_open) -> None:
    store = await open_store(quota=Quota(max_bytes=100_000, max_pending_rows=3))
    await upload(store, b"x" * 60_000)
    with pytest.raises(QuotaError, match="100000 may be stored"):
        await upload(store, b"x" * 60_000)
    await upload(store, b"x" * 60_000, tenant="other")
    assert (await store.usage("")).num_bytes == 60_000 + FILE_BYTES
    await begun_batch(store, 2, tenant="third")
    with pytest.raises(QuotaError, match="2 rows"):
        await begun_batch(store, 2, tenant="third")
    usage = await store.usage("third")
    assert (usage.num_pending_rows, usage.num_open_batches) == (2, 2)


async def test_everything_is_there_after_reopening(open_store: type_of_open) -> None:
    store = await open_store()
    batch = await begun_batch(store, 4)
    await store.finish_rows([result(batch, 2)])
    before = await store.batch("", batch.id)
    store = await open_store()
    assert await store.batch("", batch.id) == before
    assert [row.index for row in await store.pending_rows(batch.id)] == [0, 1, 3]


async def test_one_gateway_per_data_directory(store: OfflineStore, tmp_path: Path) -> None:
    with pytest.raises(DirectoryInUseError, match="--data-dir"):
        OfflineStore.open(tmp_path / "data", None, Quota(1, 1))


async def test_only_the_owner_may_read(store: OfflineStore, tmp_path: Path) -> None:
    await upload(store, b"secret")
    for path in [tmp_path / "data", *(tmp_path / "data").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


async def test_whoever_goes_away_leaves_nothing_half_done(open_store: type_of_open, tmp_path: Path) -> None:
    store = await open_store()
    batch = await begun_batch(store, 1)
    for num_turns in range(12):
        async with store.upload() as part:
            await part.write(b"x")
            creation = store.create_file(part, tenant="", purpose="batch", filename="a", expires_after=None)
            await cancelled_after(num_turns, creation)
        before, _ = await store.list_batches("", limit=100)
        store.created.clear()
        await cancelled_after(num_turns, new_batch(store, batch.input_file_id))
        await store._threads.finish()
        after, _ = await store.list_batches("", limit=100)
        assert store.created.is_set() == (len(after) > len(before))
    store = await open_store()
    records, _ = await store.list_files("", limit=100, is_ascending=True)
    assert {path.name for path in (tmp_path / "data" / "files").iterdir()} == {record.id for record in records}


async def cancelled_after(num_turns: int, work: Coroutine[Any, Any, object]) -> None:
    task = asyncio.create_task(work)
    for _ in range(num_turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
