"""What the routes of files and batches share."""

from __future__ import annotations

from aiohttp import web

from gateway.offline.store.store import OfflineStore
from gateway.protocol.errors import NotFoundError
from gateway.services import SERVICES


def offline_store(request: web.Request) -> OfflineStore:
    """Raises NotFoundError if this server has none."""
    store = request.app[SERVICES].offline
    if store is None:
        raise NotFoundError(
            "This server keeps no files and batches: it runs with --no-offline, or another one uses its data "
            "directory.",
            code="offline_disabled",
        )
    return store
