"""The runner's life with the application: it begins with it, and ends before engine and store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from gateway.config import GatewayConfig
from gateway.offline.fair_share import LookAhead
from gateway.offline.runner import OfflineRunner
from gateway.services import SERVICES

_LAG_SHARE = 4  # of the look-ahead's tokens by which a tenant may be ahead: one part in so many


async def run_rows(app: web.Application) -> AsyncIterator[None]:
    """A cleanup context. It belongs after the store's and the engine's."""
    services = app[SERVICES]
    if services.offline is None:
        yield
        return
    config = services.config
    runner = OfflineRunner(services, services.offline, look_ahead(config), config.max_promoted_rows)
    running = asyncio.create_task(runner.run())
    yield
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await runner.close()


def look_ahead(config: GatewayConfig) -> LookAhead:
    return LookAhead(
        max_rows=config.look_ahead_rows,
        max_tokens=config.look_ahead_tokens,
        max_lag_tokens=config.look_ahead_tokens // _LAG_SHARE,
    )
