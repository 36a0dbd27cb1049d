"""The runner's life with the application: it begins with it, and ends before engine and store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from aiohttp import web

from gateway.base.supervision import Supervisor
from gateway.config.config import GatewayConfig
from gateway.generation.serving import Serving
from gateway.offline.running.fair_share import LookAhead
from gateway.offline.running.runner import OfflineRunner
from gateway.offline.store.store import OfflineStore

_LAG_SHARE = 4  # of the look-ahead's tokens by which a tenant may be ahead: one part in so many


def run_rows(
    serving: Serving, store: OfflineStore, supervisor: Supervisor
) -> Callable[[web.Application], AsyncIterator[None]]:
    """A cleanup context. It belongs after the store's and the engine's."""

    async def running(_: web.Application) -> AsyncIterator[None]:
        async with supervisor.running("offline_rows", lambda: _run(serving, store)):
            yield

    return running


async def _run(serving: Serving, store: OfflineStore) -> None:
    """A runner that has failed is not used again: the next one begins with what the store says."""
    config = serving.config
    serving.metrics.offline.is_store_blocked = False
    runner = OfflineRunner(serving, store, look_ahead(config), config.max_promoted_rows)
    try:
        await runner.run()
    finally:
        await runner.close()


def look_ahead(config: GatewayConfig) -> LookAhead:
    return LookAhead(
        max_rows=config.look_ahead_rows,
        max_tokens=config.look_ahead_tokens,
        max_lag_tokens=config.look_ahead_tokens // _LAG_SHARE,
    )
