"""A store in a folder of its own, over SQLite and, where it is installed, over PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from fakes import postgresql
from fakes.leak_check import LeakCheck
from gateway.offline.store.accounts import Quota
from gateway.offline.store.store import OfflineStore

QUOTA = Quota(max_bytes=2**30, max_pending_rows=100_000)


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    if postgresql.binaries() is None:
        pytest.skip("PostgreSQL is not installed")
    with postgresql.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def new_url(request: pytest.FixtureRequest) -> Callable[[], str | None]:
    """new_url() -> the URL of an empty database; None: SQLite in the data directory."""
    if request.param == "sqlite":
        return lambda: None
    server: str = request.getfixturevalue("postgresql_url")
    return lambda: postgresql.emptied(server)


@pytest.fixture
async def open_store(
    tmp_path: Path, new_url: Callable[[], str | None], leaks: LeakCheck
) -> AsyncIterator[Callable[..., Awaitable[OfflineStore]]]:
    """open_store(quota=…, now=…) -> a recovered store; the one before is closed first, the last before leaks count."""
    url = new_url()
    opened: list[OfflineStore] = []

    async def make(**settings: object) -> OfflineStore:
        if opened:
            await opened.pop().close()
        store = OfflineStore.open(tmp_path / "data", url, **({"quota": QUOTA} | settings))  # type: ignore[arg-type]
        opened.append(store)
        await store.recover()
        return store

    yield make
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: Callable[..., Awaitable[OfflineStore]]) -> OfflineStore:
    return await open_store()
