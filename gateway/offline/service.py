"""The store's life with the application: recovery, validation in the background, upkeep every minute."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from aiohttp import web

from gateway.offline.store import OfflineStore
from gateway.offline.validation import Validator
from gateway.protocol.errors import StorageFullError, UnavailableError
from gateway.services import SERVICES

_UPKEEP_SECONDS = 60.0

_log = logging.getLogger("hocket.offline")


async def run_offline(app: web.Application) -> AsyncIterator[None]:
    """A cleanup context. What runs rows belongs after it, so that it ends before the store is closed."""
    services = app[SERVICES]
    store = services.offline
    if store is None:
        yield
        return
    config = services.config
    validator = Validator(store, config.served_model_names, config.max_batch_rows, config.max_body_bytes)
    tasks = [asyncio.create_task(validator.run()), asyncio.create_task(_keep_up(store))]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await store.close()


async def _keep_up(store: OfflineStore) -> None:
    while True:
        try:
            await store.recover()
            await store.sweep()
        except (StorageFullError, UnavailableError) as error:
            _log.warning("Upkeep of files and batches pauses: %s", error.message)
        except Exception:
            _log.exception("Upkeep of files and batches failed")
        await asyncio.sleep(_UPKEEP_SECONDS)
