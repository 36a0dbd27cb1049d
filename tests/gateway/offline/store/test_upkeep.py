"""What happens as time goes by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine
from fakes.offline_rows import begun_batch, result, upload
from gateway.offline.running.fair_share import LookAhead
from gateway.offline.running.runner import OfflineRunner
from gateway.offline.store.finalization import OUTPUT_SECONDS
from gateway.offline.store.records import BatchStatus
from gateway.offline.store.store import KEEP_ROWS_SECONDS, NewBatch, OfflineStore
from gateway.protocol.errors import NotFoundError

LOOK_AHEAD = LookAhead(max_rows=8, max_tokens=100, max_lag_tokens=100)


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(open_store: Callable[..., Awaitable[OfflineStore]], clock: Clock) -> OfflineStore:
    return await open_store(now=clock)


async def expiring(store: OfflineStore, seconds: int) -> str:
    async with store.upload() as part:
        await part.write(b'{"prompt": "a"}')
        record = await store.create_file(part, tenant="", purpose="batch", filename="a", expires_after=seconds)
    return record.id


async def test_expired_file_is_gone_at_once_and_swept_later(store: OfflineStore, clock: Clock) -> None:
    file_id, kept = await expiring(store, 3600), await upload(store, b"x")
    clock.now += 3599
    await store.sweep()
    assert (await store.file("", file_id)).id == file_id
    clock.now += 1
    with pytest.raises(NotFoundError):
        await store.file("", file_id)
    assert [file.id for file in (await store.list_files("", limit=9, is_ascending=True))[0]] == [kept]
    assert store.path(file_id).exists()
    await store.sweep()
    assert not store.path(file_id).exists()
    assert store.path(kept).exists()


@pytest.mark.parametrize("days", [40, -40, 4000])
async def test_a_clock_that_jumps_deletes_and_expires_nothing(
    open_store: Callable[..., Awaitable[OfflineStore]],
    make_services: Callable[..., Any],
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    days: int,
) -> None:
    steady = Clock()
    store = await open_store(now=clock, steady=steady)
    kept, due = await expiring(store, 86_400), await expiring(store, 3600)
    batch = await begun_batch(store, 3, window_seconds=7200)
    runner = OfflineRunner(
        make_services(FakeEngine(is_ready=False)).serving,
        store,
        LookAhead(max_rows=8, max_tokens=100, max_lag_tokens=100),
        1,
    )
    running = asyncio.create_task(runner.run())
    steady.now += 10
    clock.now += days * 86_400 + 10
    await store.sweep()
    store.changed.set()
    await eventually(lambda: runner.metrics.clock_jump_seconds == days * 86_400)
    assert (await store.batch("", batch.id)).status is BatchStatus.IN_PROGRESS
    assert store.path(kept).exists()
    assert store.path(due).exists()
    assert "clock jumped" in caplog.text
    steady.now += 7200
    clock.now += 7200
    await store.sweep()
    assert store.path(kept).exists()
    assert not store.path(due).exists()
    store.changed.set()
    await eventually(lambda: runner.metrics.num_batches_ended["expired"])
    assert (await store.batch("", batch.id)).status is BatchStatus.EXPIRED
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await runner.close()


async def test_input_file_expires_after_its_batch(store: OfflineStore, clock: Clock) -> None:
    file_id = await expiring(store, 3600)
    new = NewBatch(endpoint="/v1/completions", input_file_id=file_id, completion_window="1d", window_seconds=86400)
    batch = await store.create_batch("", new)
    clock.now += 7200
    await store.sweep()
    assert store.path(file_id).exists()
    await store.finalize(batch.id, BatchStatus.CANCELLED)
    await store.sweep()
    assert not store.path(file_id).exists()


async def test_outputs_expire_after_thirty_days(store: OfflineStore, clock: Clock) -> None:
    batch = await begun_batch(store, 1)
    await store.finish_rows([result(batch, 0)])
    clock.now += 50
    ended = await store.finalize(batch.id)
    assert ended.output_file_id is not None
    output = await store.file("", ended.output_file_id)
    assert output.expires_at == clock.now + OUTPUT_SECONDS


async def test_rows_of_an_ended_batch_are_dropped_after_a_while(store: OfflineStore, clock: Clock) -> None:
    batch, other = await begun_batch(store, 6), await begun_batch(store, 2)
    await store.finish_rows([result(batch, i) for i in range(6)])
    await store.finish_rows([result(other, 0)])
    await store.finalize(batch.id)
    await store.sweep()
    assert len((await store.landed("", batch.id, 0, 9))[1]) == 6
    clock.now += KEEP_ROWS_SECONDS + 1
    await store.sweep()
    assert (await store.landed("", batch.id, 0, 9))[1] == []
    assert (await store.batch("", batch.id)).num_completed == 6
    assert len((await store.landed("", other.id, 0, 9))[1]) == 1
    assert [row.index for row in await store.pending_rows(other.id)] == [1]
