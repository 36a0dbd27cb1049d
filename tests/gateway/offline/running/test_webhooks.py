"""A batch's end is told: once it is on the disk, signed, again until it is received."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from fakes.eventually import eventually
from fakes.manual_clock import ManualClock
from fakes.offline_rows import begun_batch, result
from gateway.config.standard_webhooks import WebhookSecret, verify
from gateway.config.webhook_targets import WebhookTargets
from gateway.offline.running.webhooks import _PER_TENANT, PAUSES_SECONDS, Courier
from gateway.offline.store.outbox import OutboxMessage
from gateway.offline.store.records import BatchRecord, BatchStatus
from gateway.offline.store.store import OfflineStore

SECRET = WebhookSecret(bytes(range(32)))
type_of_open = Callable[..., Awaitable[OfflineStore]]


@dataclass
class Receiver:
    """Somebody's server, which takes webhooks."""

    status: int = 204
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    async def take(self, request: web.Request) -> web.Response:
        self.received.append((dict(request.headers), await request.read()))
        headers = {"Location": "/elsewhere"} if self.status == 302 else {}
        return web.Response(status=self.status, headers=headers)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/{path:.*}", receiver.take)
    async with TestServer(app) as server:
        receiver.url = str(server.make_url("/hook"))
        yield receiver


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000.0)


def targets(*urls: str, allow_private: bool = True) -> WebhookTargets:
    return WebhookTargets({None: urls} if urls else {}, {"": [SECRET]}, allow_private)


async def ended(store: OfflineStore, outcome: BatchStatus = BatchStatus.COMPLETED) -> BatchRecord:
    batch = await begun_batch(store, 1)
    await store.finish_rows([result(batch, 0)])
    return await store.finalize(batch.id, outcome)


@asynccontextmanager
async def delivering(store: OfflineStore) -> AsyncIterator[Courier]:
    courier = Courier(store, chance=lambda: 0.0)
    task = asyncio.create_task(courier.run())
    try:
        yield courier
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_the_end_of_a_batch_is_told_signed(
    open_store: type_of_open, receiver: Receiver, clock: ManualClock
) -> None:
    store = await open_store(webhooks=targets(receiver.url), now=clock)
    async with delivering(store):
        batch = await ended(store)
        await eventually(lambda: receiver.received)
        assert await settled(store, clock) is None
    headers, body = receiver.received[0]
    message = verify([SECRET], headers, body, 1_700_000_000)
    event = json.loads(body)
    assert event == {
        "id": message.id,
        "object": "event",
        "created_at": 1_700_000_000,
        "type": "batch.completed",
        "data": {"id": batch.id},
    }
    assert headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("outcome", [BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED])
async def test_every_end_has_its_event(outcome: BatchStatus, open_store: type_of_open, receiver: Receiver) -> None:
    store = await open_store(webhooks=targets(receiver.url))
    async with delivering(store):
        await ended(store, outcome)
        await eventually(lambda: receiver.received)
    assert json.loads(receiver.received[0][1])["type"] == f"batch.{outcome}"


async def test_a_webhook_survives_a_restart(open_store: type_of_open, receiver: Receiver) -> None:
    store = await open_store(webhooks=targets(receiver.url))
    await ended(store)
    await store.finalize((await store.list_batches("", limit=1))[0][0].id)
    store = await open_store(webhooks=targets(receiver.url))
    async with delivering(store):
        await eventually(lambda: receiver.received)
    assert len(receiver.received) == 1


async def test_it_is_sent_again_with_growing_pauses_and_the_same_id_then_dropped(
    open_store: type_of_open, receiver: Receiver, clock: ManualClock
) -> None:
    receiver.status = 500
    store = await open_store(webhooks=targets(receiver.url), now=clock)
    await ended(store)
    times: list[float] = []
    async with delivering(store):
        for number in range(1, len(PAUSES_SECONDS) + 2):
            await eventually(lambda number=number: len(receiver.received) == number)  # type: ignore[misc]
            times.append(clock.now)
            due_at = await settled(store, clock)
            clock.now = due_at or clock.now
            store.posted.set()
    assert [later - earlier for earlier, later in pairwise(times)] == list(PAUSES_SECONDS)
    assert due_at is None
    assert len({headers["webhook-id"] for headers, _ in receiver.received}) == 1
    assert len({headers["webhook-timestamp"] for headers, _ in receiver.received}) == len(times)


async def test_an_answer_of_the_store_from_before_an_attempt_sends_nothing_again(
    open_store: type_of_open, receiver: Receiver, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.status = 500
    store = await open_store(webhooks=targets(receiver.url), now=clock)
    await ended(store)
    due_webhooks = store.due_webhooks
    looks = 0

    async def answering_late(per_tenant: int) -> list[OutboxMessage]:
        nonlocal looks
        looks += 1
        messages = await due_webhooks(per_tenant)
        if looks == 2:  # what was due before the first attempt ended is told after it
            await settled(store, clock)
            await asyncio.sleep(0.05)
        return messages

    monkeypatch.setattr(store, "due_webhooks", answering_late)
    async with delivering(store):
        await eventually(lambda: looks == 1)
        store.posted.set()
        await eventually(lambda: looks >= 3)
        await asyncio.sleep(0.05)
    assert len(receiver.received) == 1


async def settled(store: OfflineStore, clock: ManualClock) -> float | None:
    """When the next attempt is, once this one has been dealt with."""
    while True:
        due_at = await store.next_webhook_at()
        if due_at is None or due_at > clock.now:
            return due_at
        await asyncio.sleep(0.002)


@pytest.mark.parametrize(("status", "is_dropped"), [(410, True), (302, False), (400, False)])
async def test_which_answers_end_it(
    status: int, is_dropped: bool, open_store: type_of_open, receiver: Receiver, clock: ManualClock
) -> None:
    receiver.status = status
    store = await open_store(webhooks=targets(receiver.url), now=clock)
    await ended(store)
    async with delivering(store):
        await eventually(lambda: receiver.received)
        assert (await settled(store, clock) is None) is is_dropped
    assert len(receiver.received) == 1


async def test_a_batch_names_its_own_url(open_store: type_of_open, receiver: Receiver) -> None:
    store = await open_store(webhooks=targets())
    async with delivering(store):
        await named(store, receiver.url)
        await eventually(lambda: receiver.received)
    assert len(receiver.received) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433"])
async def test_private_addresses_are_not_reached_however_they_are_written(
    host: str, open_store: type_of_open, receiver: Receiver, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_store(webhooks=targets(allow_private=False), now=clock)
    await named(store, receiver.url.replace("127.0.0.1", host) + "?token=secret")
    async with delivering(store):
        assert await settled(store, clock) is not None
    assert receiver.received == []
    assert "is not a public address" in caplog.text
    assert "token" not in caplog.text


async def test_one_that_hangs_does_not_keep_others(open_store: type_of_open, receiver: Receiver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = await open_store(webhooks=targets(f"http://127.0.0.1:{silent.getsockname()[1]}/", receiver.url))
        async with delivering(store):
            await ended(store)
            await eventually(lambda: receiver.received)
    assert len(receiver.received) == 1


async def test_receivers_that_hang_hold_up_no_other(open_store: type_of_open, receiver: Receiver) -> None:
    """Twenty messages to one tarpit, which takes connections and says nothing, then one to somebody who listens."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as tarpit:
        store = await open_store(webhooks=targets())
        for number in range(20):
            await named(store, f"http://127.0.0.1:{tarpit.getsockname()[1]}/{number}")
        await named(store, receiver.url)
        async with delivering(store):
            await eventually(lambda: receiver.received)
    assert len(receiver.received) == 1


async def test_a_tenant_with_many_tarpits_holds_up_no_other_tenant(
    open_store: type_of_open, receiver: Receiver
) -> None:
    secrets = {tenant: [SECRET] for tenant in ("alice", "bob")}
    tarpits = [socket.create_server(("127.0.0.1", 0)) for _ in range(20)]
    store = await open_store(webhooks=WebhookTargets({}, secrets, True))
    for tarpit in tarpits:
        await named(store, f"http://127.0.0.1:{tarpit.getsockname()[1]}/", "alice")
    await named(store, receiver.url, "bob")
    async with delivering(store) as courier:
        await eventually(lambda: receiver.received)
        assert len(courier._deliveries) <= _PER_TENANT + 1
    for tarpit in tarpits:
        tarpit.close()


async def test_messages_of_one_receiver_come_one_after_the_other(open_store: type_of_open, receiver: Receiver) -> None:
    store = await open_store(webhooks=targets())
    batches = [await named(store, f"{receiver.url}/{number}") for number in range(5)]
    async with delivering(store):
        await eventually(lambda: len(receiver.received) == 5)
    assert [json.loads(body)["data"]["id"] for _, body in receiver.received] == [batch.id for batch in batches]


async def named(store: OfflineStore, url: str, tenant: str = "") -> BatchRecord:
    batch = await begun_batch(store, 1, tenant=tenant, metadata={"webhook_url": url})
    await store.finish_rows([result(batch, 0)])
    return await store.finalize(batch.id)
