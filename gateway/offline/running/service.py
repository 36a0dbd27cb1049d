"""The store's life with the application: recovery, validation in the background, upkeep every minute."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext

from aiohttp import web

from gateway.base.supervision import Supervisor
from gateway.config.config import GatewayConfig
from gateway.offline.checking.validation import Validator
from gateway.offline.store.store import OfflineStore
from gateway.protocol.errors import StorageFullError, UnavailableError

_UPKEEP_SECONDS = 60.0
_RENEWALS = 4  # of leases, until they would run out

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
            _sharing(store, supervisor),
        ):
            yield
        await store.close()

    return running


def _sharing(store: OfflineStore, supervisor: Supervisor) -> AbstractAsyncContextManager[object]:
    if store.leases is None:
        return nullcontext()
    pause = store.leases.seconds / _RENEWALS
    return supervisor.running("batch_leases", lambda: _keep_leases(store, pause))


async def _keep_leases(store: OfflineStore, pause: float) -> None:
    while True:
        try:
            await store.renew_leases()
        except (StorageFullError, UnavailableError) as error:
            _log.warning("The leases of rows are not renewed: %s", error.message)
        await asyncio.sleep(pause)


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
