"""The store's life with the application: recovery, validation in the background, upkeep every minute."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from gateway.base.supervision import Supervisor
from gateway.config.config import GatewayConfig
from gateway.offline.checking.validation import Validator
from gateway.offline.store.store import OfflineStore
from gateway.protocol.errors import StorageFullError, UnavailableError

_UPKEEP_SECONDS = 60.0

_log = logging.getLogger("hocket.offline")


def run_offline(
    store: OfflineStore, config: GatewayConfig, supervisor: Supervisor
) -> Callable[[web.Application], AsyncIterator[None]]:
    """A cleanup context. What runs rows belongs after it, so that it ends before the store is closed."""

    async def running(_: web.Application) -> AsyncIterator[None]:
        validator = Validator(store, config.served_model_names, config.max_batch_rows, config.max_body_bytes)
        async with (
            supervisor.running("batch_validation", validator.run),
            supervisor.running("offline_upkeep", lambda: _maintain(store)),
        ):
            yield
        await store.close()

    return running


async def _maintain(store: OfflineStore) -> None:
    while True:
        try:
            await store.recover()
            await store.sweep()
        except (StorageFullError, UnavailableError) as error:
            _log.warning("Upkeep of files and batches pauses: %s", error.message)
        except Exception:
            _log.exception("Upkeep of files and batches failed")
        await asyncio.sleep(_UPKEEP_SECONDS)
