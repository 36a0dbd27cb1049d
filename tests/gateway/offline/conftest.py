"""A store in a folder of its own; `reopen` is what a crash and a restart do to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gateway.offline.store import OfflineStore, Quota

QUOTA = Quota(max_bytes=2**30, max_pending_rows=100_000)


@pytest.fixture
async def open_store(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[OfflineStore]]]:
    """open_store(quota=…, now=…) -> a recovered store; the one before is closed first."""
    opened: list[OfflineStore] = []

    async def make(**settings: object) -> OfflineStore:
        if opened:
            await opened.pop().close()
        store = OfflineStore.open(tmp_path / "data", None, **({"quota": QUOTA} | settings))  # type: ignore[arg-type]
        opened.append(store)
        await store.recover()
        return store

    yield make
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: Callable[..., Awaitable[OfflineStore]]) -> OfflineStore:
    return await open_store()
