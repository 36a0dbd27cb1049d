"""Several gateways over one PostgreSQL database and one directory: who may do what."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from fakes import postgresql
from fakes.offline_rows import begun_batch, new_batch, result, row_line, upload
from gateway.config.webhook_targets import WebhookTargets
from gateway.offline.checking.validation import Validator
from gateway.offline.database.database import StoreOpenError
from gateway.offline.store.accounts import Quota
from gateway.offline.store.leases import HeldElsewhereError
from gateway.offline.store.records import BatchRecord, BatchStatus, CheckedRow
from gateway.offline.store.store import OfflineStore
from gateway.protocol.errors import QuotaError

QUOTA = Quota(max_bytes=2**30, max_pending_rows=100_000)
Open = Callable[..., OfflineStore]


@pytest.fixture
async def share(tmp_path: Path, postgresql_url: str) -> AsyncIterator[Open]:
    """share() -> another gateway's store."""
    url = postgresql.emptied(postgresql_url)
    opened: list[OfflineStore] = []

    def another(quota: Quota = QUOTA, webhooks: WebhookTargets | None = None) -> OfflineStore:
        store = OfflineStore.open(tmp_path / "data", url, quota, webhooks, lease_seconds=60.0)
        opened.append(store)
        return store

    yield another
    for store in opened:
        await store.close()


async def write(store: OfflineStore, sql: str, **values: object) -> None:
    def change(connection: Connection) -> None:
        connection.execute(text(sql), values)

    await store._threads.write(change)


async def let_expire(store: OfflineStore, other: OfflineStore) -> None:
    """`store` was silent for too long, as `other` finds."""
    assert store.leases is not None
    await write(store, "UPDATE runners SET expires_at = 0 WHERE sequence = :runner", runner=store.leases.runner)
    await other.renew_leases()


async def lease(store: OfflineStore, batch: BatchRecord, candidates: list[int], limit: int = 100) -> list[int]:
    taken, _ = await store.lease_rows(batch.id, candidates, limit)
    return taken


async def output(store: OfflineStore, batch: BatchRecord) -> list[bytes]:
    _, landed, _ = await store.landed(batch.tenant, batch.id, 0, 10_000)
    return [row.line for row in landed]


async def test_a_row_is_leased_to_one_gateway(share: Open) -> None:
    one, two = share(), share()
    batch = await begun_batch(one, 10, bad=[3])
    assert await one.lease_rows(batch.id, [4, 3, 2, 1, 0], 3) == ([4, 2, 1], 4)  # looked at: 4, 3, 2 and 1
    assert await two.lease_rows(batch.id, [4, 3, 2, 1, 0], 3) == ([0], 5)
    assert await lease(one, batch, [1, 5]) == [1, 5]  # its own again
    assert [row.index for row in await two.pending_rows(batch.id)] == [0, 6, 7, 8, 9]
    await one.give_back_rows(batch.id)
    assert await lease(two, batch, [4, 5]) == [4, 5]


async def test_a_result_of_an_expired_lease_is_refused(share: Open) -> None:
    one, two = share(), share()
    batch = await begun_batch(one, 3)
    assert await lease(one, batch, [0, 1]) == [0, 1]
    await one.finish_rows([result(batch, 0, "one")])
    await let_expire(one, two)
    await one.finish_rows([result(batch, 1, "late")])
    assert await one.num_pending(batch.id) == 2
    assert await lease(two, batch, [0, 1, 2]) == [1, 2]
    await one.finish_rows([result(batch, 1, "late again")])
    await two.finish_rows([result(batch, 1, "two")])
    await two.finish_rows([result(batch, 1, "twice")])
    assert await output(two, batch) == [result(batch, 0, "one").line, result(batch, 1, "two").line]
    assert one.leases is not None
    assert one.leases.num_refused == 2
    before = one.leases.runner
    await one.renew_leases()
    assert one.leases.runner > before
    assert await lease(one, batch, [0, 1, 2]) == []


async def test_a_gateway_that_leaves_frees_its_rows_at_once(share: Open, tmp_path: Path) -> None:
    one = share()
    two = OfflineStore.open(tmp_path / "data", one._database._engine.url.render_as_string(), QUOTA, lease_seconds=60.0)
    batch = await begun_batch(one, 2)
    assert await lease(two, batch, [0, 1]) == [0, 1]
    await two.close()
    assert await lease(one, batch, [0, 1]) == [0, 1]


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_a_row_ends_once_by_whoever_has_it(share: Open, seed: int) -> None:
    chance = random.Random(seed)
    stores = [share() for _ in range(3)]
    num_rows = 24
    batch = await begun_batch(stores[0], num_rows)
    holder: dict[int, int] = {}  # the oracle: row -> gateway
    ended: dict[int, bytes] = {}
    for step in range(250):
        i = chance.randrange(3)
        store, some = stores[i], chance.sample(range(num_rows), 6)
        match chance.choice(("lease", "lease", "finish", "finish", "give back", "expire")):
            case "lease":
                free = [index for index in some if index not in ended and holder.get(index, i) == i]
                limit = chance.randint(1, 4)
                assert await lease(store, batch, some, limit) == free[:limit]
                holder |= dict.fromkeys(free[:limit], i)
            case "finish":
                results = [result(batch, index, f"{i} at {step}") for index in some]
                await store.finish_rows(results)
                for one in results:
                    if one.index not in ended and holder.get(one.index) == i:
                        ended[one.index] = one.line
            case "give back":
                await store.give_back_rows(batch.id)
                holder = {index: who for index, who in holder.items() if who != i}
            case "expire":
                await let_expire(store, stores[(i + 1) % 3])
                holder = {index: who for index, who in holder.items() if who != i}
                if chance.random() < 0.5:
                    await store.renew_leases()
        await stores[0].renew_leases()
    assert len(ended) > num_rows // 2
    assert sorted(await output(stores[1], batch)) == sorted(ended.values())
    assert await stores[2].num_pending(batch.id) == num_rows - len(ended)


async def test_two_cannot_end_a_batch_and_one_takes_over_from_the_dead(
    share: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = share(), share()
    batch = await begun_batch(one, 3)
    await lease(one, batch, [0, 1, 2])
    await one.finish_rows([result(batch, index) for index in range(3)])

    def killed(*_: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("gateway.offline.store.finalization.write_files", killed)
        with pytest.raises(OSError, match="killed"):
            await one.finalize(batch.id)
    with pytest.raises(HeldElsewhereError):
        await two.finalize(batch.id)
    await two.recover()
    assert (await two.batch("", batch.id)).status is BatchStatus.FINALIZING
    await let_expire(one, two)
    await two.recover()
    assert (await one.batch("", batch.id)).status is BatchStatus.COMPLETED
    with suppress(HeldElsewhereError):
        await one.finalize(batch.id)
    ended = await one.batch("", batch.id)
    assert ended.output_file_id is not None
    assert one.path(ended.output_file_id).read_bytes().count(b"\n") == 3


async def test_a_cancelled_batch_takes_no_results_from_anybody(share: Open) -> None:
    one, two = share(), share()
    batch = await begun_batch(one, 3)
    await lease(one, batch, [0])
    await lease(two, batch, [1])
    await one.finish_rows([result(batch, 0)])
    await two.cancel_batch("", batch.id)
    await two.finalize(batch.id, BatchStatus.CANCELLED)
    await one.finish_rows([result(batch, 0, "late")])
    await two.finish_rows([result(batch, 1, "late")])
    ended = await one.batch("", batch.id)
    assert (ended.status, ended.num_completed) == (BatchStatus.CANCELLED, 1)
    assert await output(one, batch) == [result(batch, 0).line]


async def test_one_gateway_validates_a_batch_and_another_takes_over(share: Open) -> None:
    one, two = share(), share()
    file_id = await upload(one, b"".join(row_line(f"r{i}", {"model": "demo", "prompt": "x"}) for i in range(5)))
    batch = await new_batch(one, file_id)
    await one.claim(batch.id)
    with pytest.raises(HeldElsewhereError):
        await two.claim(batch.id)
    for attempt in (two.drop_rows(batch.id), two.add_rows(batch, [CheckedRow(0, "r0", 0, 1, None)])):
        with pytest.raises(HeldElsewhereError):
            await attempt
    await let_expire(one, two)
    validator = Validator(two, ["demo"], 5000, 10_000)
    await validator._start_some()
    await validator._running[""]
    assert (await one.batch("", batch.id)).status is BatchStatus.IN_PROGRESS
    with pytest.raises(HeldElsewhereError):  # who was given up meanwhile, and goes on
        await one.drop_rows(batch.id)
    with pytest.raises(HeldElsewhereError):  # who looked at the list of batches before
        await one.claim(batch.id)
    assert await one.num_pending(batch.id) == 5


async def test_one_of_them_delivers_webhooks(share: Open) -> None:
    webhooks = WebhookTargets.parse(["https://example.com/"], ["whsec_" + "A" * 32], [], allow_private=False)
    one, two = share(webhooks=webhooks), share(webhooks=webhooks)
    batch = await begun_batch(two, 1)
    await two.finalize(batch.id, BatchStatus.EXPIRED)
    await two.renew_leases()
    assert len(await one.due_webhooks(8)) == 1
    assert await two.due_webhooks(8) == []
    await let_expire(one, two)
    assert len(await two.due_webhooks(8)) == 1


async def test_uploads_to_two_gateways_have_one_quota(share: Open) -> None:
    quota = Quota(max_bytes=3 * 2**20, max_pending_rows=10)
    one, two = share(quota), share(quota)
    content = b"x" * (2 * 2**20)
    async with one.upload() as first, two.upload() as second:
        await first.write(content)
        await second.write(content)
        fields = {"tenant": "", "purpose": "batch", "filename": "f", "expires_after": None}
        await one.create_file(first, **fields)  # type: ignore[arg-type]
        with pytest.raises(QuotaError):
            await two.create_file(second, **fields)  # type: ignore[arg-type]
    batch = await begun_batch(one, 2)
    for store, index in ((one, 0), (two, 1)):
        await lease(store, batch, [index])
        with pytest.raises(QuotaError):
            await store.finish_rows([result(batch, index, "x" * 2**20)])


async def test_what_another_gateway_writes_is_not_cleaned_up(share: Open) -> None:
    one = share()
    async with one.upload() as part:
        await part.write(b"x" * 2**21)
        two = share()
        record = await one.create_file(part, tenant="", purpose="batch", filename="f", expires_after=None)
    assert two.path(record.id).stat().st_size == 2**21


async def test_sharing_and_not_sharing_do_not_mix(share: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.offline.database.database._LOCK_SECONDS", 0.05)
    url = share()._database._engine.url.render_as_string()
    for directory in ("data", "another"):
        with pytest.raises(StoreOpenError, match="another gateway uses"):
            OfflineStore.open(tmp_path / directory, url, QUOTA)
    with pytest.raises(StoreOpenError, match="PostgreSQL"):
        OfflineStore.open(tmp_path / "third", None, QUOTA, lease_seconds=60.0)
