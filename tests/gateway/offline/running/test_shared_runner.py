"""Two gateways' runners over one PostgreSQL database, each with a fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from fakes import postgresql
from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine
from fakes.offline_rows import begun_batch
from gateway.offline.running import runner as runner_module
from gateway.offline.running.fair_share import LookAhead
from gateway.offline.running.runner import OfflineRunner
from gateway.offline.store.accounts import Quota
from gateway.offline.store.records import BatchRecord, BatchStatus
from gateway.offline.store.store import OfflineStore

LOOK_AHEAD = LookAhead(max_rows=8, max_tokens=10_000, max_lag_tokens=10_000)


@dataclass
class Gateway:
    store: OfflineStore
    engine: FakeEngine
    runner: OfflineRunner
    task: asyncio.Task[None]

    async def freeze(self) -> None:
        """As if it were stopped: it does nothing any more, and says nothing."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def step_until_ended(self, batch: BatchRecord, other: Gateway | None = None) -> BatchRecord:
        async with asyncio.timeout(30):
            while (record := await self.store.batch("", batch.id)).is_open:
                for gateway in (self, other):
                    if gateway is not None:
                        gateway.engine.step()
                await asyncio.sleep(0.002)
        return record


Start = Callable[[], Awaitable[Gateway]]


@pytest.fixture
async def start(
    tmp_path: Path, postgresql_url: str, make_services: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Start]:
    """start() -> another gateway at work."""
    monkeypatch.setattr(runner_module, "LEARN_SECONDS", 0.05)
    monkeypatch.setattr(runner_module, "TURN_SECONDS", 0.05)
    url = postgresql.emptied(postgresql_url)
    gateways: list[Gateway] = []

    async def another() -> Gateway:
        store = OfflineStore.open(tmp_path / "data", url, Quota(2**30, 10_000), lease_seconds=60.0)
        engine = FakeEngine(is_manual=True)
        runner = OfflineRunner(make_services(engine).serving, store, LOOK_AHEAD, 4)
        gateways.append(Gateway(store, engine, runner, asyncio.create_task(runner.run())))
        await store.renew_leases()
        return gateways[-1]

    yield another
    for gateway in gateways:
        await gateway.freeze()
        await gateway.runner.close()
        await gateway.store.close()


async def give_up(gateway: Gateway, other: Gateway) -> None:
    """The other one finds that it was silent for too long."""
    assert gateway.store.leases is not None

    def expire(connection: Connection) -> None:
        assert gateway.store.leases is not None
        values = {"runner": gateway.store.leases.runner}
        connection.execute(text("UPDATE runners SET expires_at = 0 WHERE sequence = :runner"), values)

    await other.store._threads.write(expire)
    await other.store.renew_leases()


def ids(gateway: Gateway, record: BatchRecord) -> list[bytes]:
    assert record.output_file_id is not None
    lines = gateway.store.path(record.output_file_id).read_bytes().splitlines()
    return [line.split(b'"custom_id":"')[1].split(b'"')[0] for line in lines]


async def test_two_gateways_run_one_batch_each_row_once(start: Start) -> None:
    one, two = await start(), await start()
    await one.store.renew_leases()
    batch = await begun_batch(one.store, 60)
    await eventually(lambda: one.engine.num_open == two.engine.num_open == LOOK_AHEAD.max_rows)
    record = await one.step_until_ended(batch, two)
    assert (record.status, record.num_completed) == (BatchStatus.COMPLETED, 60)
    assert ids(two, record) == [b"r%d" % i for i in range(60)]
    prompts = [tuple(request.prompt_token_ids) for gateway in (one, two) for request in gateway.engine.requests]
    assert len(prompts) == len(set(prompts)) == 60
    assert min(len(one.engine.requests), len(two.engine.requests)) >= 10
    await eventually(lambda: not one.runner._batches and not two.runner._batches)
    ended = one.runner.metrics.num_batches_ended + two.runner.metrics.num_batches_ended
    assert ended == {"completed": 1}


async def test_rows_of_a_gateway_that_is_gone_are_run_by_the_other(start: Start) -> None:
    one, two = await start(), await start()
    await one.store.renew_leases()
    batch = await begun_batch(one.store, 40)
    await eventually(lambda: one.engine.num_open == two.engine.num_open == LOOK_AHEAD.max_rows)
    await one.freeze()
    await give_up(one, two)
    record = await two.step_until_ended(batch)
    assert ids(two, record) == [b"r%d" % i for i in range(40)]
    assert len(two.engine.requests) == 40


async def test_a_gateway_that_was_given_up_and_goes_on_changes_nothing(start: Start) -> None:
    one, two = await start(), await start()
    await one.store.renew_leases()
    batch = await begun_batch(one.store, 40)
    await eventually(lambda: one.engine.num_open == two.engine.num_open == LOOK_AHEAD.max_rows)
    await give_up(one, two)
    one.engine.step()  # results that nobody asked for any more
    record = await one.step_until_ended(batch, two)
    assert ids(two, record) == [b"r%d" % i for i in range(40)]
    assert one.store.leases is not None
    await one.store.renew_leases()
    another = await begun_batch(one.store, 20)
    await eventually(lambda: one.engine.num_open and two.engine.num_open)
    assert (await one.step_until_ended(another, two)).num_completed == 20


async def test_a_gateway_whose_engine_died_leaves_its_rows_to_the_other(start: Start) -> None:
    one, two = await start(), await start()
    await one.store.renew_leases()
    batch = await begun_batch(one.store, 40)
    await eventually(lambda: one.engine.num_open == two.engine.num_open == LOOK_AHEAD.max_rows)
    one.engine.die("It was killed.")
    record = await two.step_until_ended(batch)
    assert ids(two, record) == [b"r%d" % i for i in range(40)]


@pytest.mark.parametrize("is_expired", [False, True])
async def test_a_batch_that_ends_elsewhere_leaves_the_engine(start: Start, is_expired: bool) -> None:
    one, two = await start(), await start()
    await one.store.renew_leases()
    batch = await begun_batch(one.store, 40)
    await eventually(lambda: one.engine.num_open == two.engine.num_open == LOOK_AHEAD.max_rows)
    if is_expired:
        await one.store.finalize(batch.id, BatchStatus.EXPIRED)
    else:
        await one.store.cancel_batch("", batch.id)
    await eventually(lambda: not one.engine.num_open and not two.engine.num_open)
    await eventually(lambda: not one.runner._batches and not two.runner._batches)
    ended = BatchStatus.EXPIRED if is_expired else BatchStatus.CANCELLED
    assert (await two.store.batch("", batch.id)).status is ended
