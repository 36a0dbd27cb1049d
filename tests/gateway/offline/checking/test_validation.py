from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import psutil
import pytest
from sqlalchemy import text

from fakes.eventually import eventually
from fakes.offline_rows import begun_batch, new_batch, row_line, upload
from gateway.offline.checking import validation
from gateway.offline.checking.validation import MAX_SHOWN_ERRORS, Validator
from gateway.offline.database.failures import DamagedError
from gateway.offline.store.records import BatchRecord, BatchStatus, CheckedRow
from gateway.offline.store.store import OfflineStore


@pytest.fixture
async def validator(store: OfflineStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Validator]:
    monkeypatch.setattr(validation, "RETRY_SECONDS", (0.01, 0.01))
    made = Validator(store, ["demo"], max_rows=5000, max_line_bytes=10_000)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def settled(store: OfflineStore, batch: BatchRecord) -> BatchRecord:
    while (now := await store.batch(batch.tenant, batch.id)).status is BatchStatus.VALIDATING:
        store.changed.clear()
        await asyncio.wait_for(store.changed.wait(), 60)
    return now


def good_rows(num_rows: int) -> bytes:
    return b"".join(row_line(f"r{i}", {"prompt": f"prompt {i}"}) for i in range(num_rows))


async def test_interrupted_validation_starts_anew(store: OfflineStore) -> None:
    batch = await new_batch(store, await upload(store, good_rows(1200)))
    await store.add_rows(batch, [CheckedRow(i, f"old{i}", 0, 1, b"{}" if i == 3 else None) for i in range(500)])
    running = asyncio.create_task(Validator(store, ["demo"], 5000, 10_000).run())
    now = await settled(store, batch)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (now.status, now.num_rows, now.num_failed, now.model) == (BatchStatus.IN_PROGRESS, 1200, 0, "demo")
    rows = await store.pending_rows(batch.id, limit=5000)
    assert [row.custom_id for row in rows] == [f"r{i}" for i in range(1200)]
    assert [json.loads(row.body)["prompt"] for row in rows] == [f"prompt {i}" for i in range(1200)]


async def test_file_that_cannot_be_read_fails_the_batch(store: OfflineStore, validator: Validator) -> None:
    file_id = await upload(store, good_rows(1))
    store.path(file_id).unlink()
    now = await settled(store, await new_batch(store, file_id))
    assert now.status is BatchStatus.FAILED
    assert now.errors is not None
    assert json.loads(now.errors)[0]["code"] == "validation_failed"


async def test_the_first_errors_are_shown_and_all_are_in_the_file(store: OfflineStore, validator: Validator) -> None:
    num_bad = MAX_SHOWN_ERRORS + 7
    now = await settled(store, await new_batch(store, await upload(store, good_rows(2) + b"bad\n" * num_bad)))
    assert (now.num_rows, now.num_failed) == (num_bad + 2, num_bad)
    assert now.errors is not None
    shown = json.loads(now.errors)
    assert [error["line"] for error in shown] == [*range(3, MAX_SHOWN_ERRORS + 3), None]
    assert shown[-1]["message"].startswith("7 more lines")
    ended = await store.finalize(now.id, BatchStatus.CANCELLED)
    assert ended.error_file_id is not None
    assert len(store.path(ended.error_file_id).read_bytes().splitlines()) == num_bad + 2


async def test_a_row_that_the_database_refuses_fails_alone(store: OfflineStore, validator: Validator) -> None:
    refusal = "ALTER TABLE rows ADD CHECK (custom_id <> 'r2')"
    if "sqlite" in store._database.name:
        refusal = (
            "CREATE TRIGGER refusal BEFORE INSERT ON rows WHEN NEW.custom_id = 'r2' "
            "BEGIN SELECT RAISE(ABORT, 'a rule of the database'); END"
        )
    await store._threads.write(lambda connection: connection.execute(text(refusal)))
    hit = await new_batch(store, await upload(store, good_rows(5), "a"), "a")
    other = await new_batch(store, await upload(store, good_rows(2), "b"), "b")
    assert (await settled(store, other)).status is BatchStatus.IN_PROGRESS
    now = await settled(store, hit)
    assert (now.status, now.num_rows, now.num_failed) == (BatchStatus.IN_PROGRESS, 5, 1)
    assert [row.custom_id for row in await store.pending_rows(hit.id)] == ["r0", "r1", "r3", "r4"]
    _, landed, _ = await store.landed("a", hit.id, 0, 9)
    assert json.loads(landed[0].line)["error"]["code"] == "database_refused"


async def test_a_validation_that_fails_again_and_again_keeps_no_other_waiting(
    store: OfflineStore, validator: Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two batches whose rows cannot be dropped, of two tenants: as many as there are processes."""
    bad = [await new_batch(store, await upload(store, good_rows(1), tenant), tenant) for tenant in "ab"]
    drop, is_damaged = store.drop_rows, True

    async def drop_or_not(batch_id: str) -> None:
        if is_damaged and batch_id in {batch.id for batch in bad}:
            raise DamagedError("A page is gone.")
        await drop(batch_id)

    monkeypatch.setattr(store, "drop_rows", drop_or_not)
    store.created.set()
    for _ in range(3):
        other = await new_batch(store, await upload(store, good_rows(2), "c"), "c")
        assert (await settled(store, other)).status is BatchStatus.IN_PROGRESS
    is_damaged = False
    assert all([(await settled(store, batch)).status is not BatchStatus.VALIDATING for batch in bad])


async def test_batches_of_a_tenant_are_validated_in_order_and_another_tenants_beside_them(
    store: OfflineStore, validator: Validator
) -> None:
    mine = [await new_batch(store, await upload(store, good_rows(3), "a"), "a") for _ in range(3)]
    other = await new_batch(store, await upload(store, good_rows(3), "b"), "b")
    ended = [await settled(store, batch) for batch in [*mine, other]]
    assert all(batch.status is BatchStatus.IN_PROGRESS for batch in ended)
    starts = [batch.in_progress_at or 0 for batch in ended[:3]]
    assert starts == sorted(starts)


async def test_a_validator_that_is_cancelled_at_any_moment_leaves_no_process(store: OfflineStore) -> None:
    await new_batch(store, await upload(store, good_rows(3)))
    for num_turns in range(0, 200, 10):
        running = asyncio.create_task(Validator(store, ["demo"], 5000, 10_000).run())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        commands = [" ".join(child.cmdline()) for child in psutil.Process().children()]
        assert not [command for command in commands if "gateway.offline.checking.checker" in command]


async def test_cancelled_batch_that_waits_is_cancelled_without_a_look_at_its_file(store: OfflineStore) -> None:
    batch = await new_batch(store, await upload(store, good_rows(3)))
    await store.cancel_batch("", batch.id)
    running_batch = await begun_batch(store, 1)
    running = asyncio.create_task(Validator(store, ["demo"], 5000, 10_000).run())
    states: list[BatchStatus] = []

    async def look() -> None:
        while BatchStatus.CANCELLED not in states:
            states.append((await store.batch("", batch.id)).status)
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await eventually(looking.done, 60)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (await store.batch("", running_batch.id)).status is BatchStatus.IN_PROGRESS
