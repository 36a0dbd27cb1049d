"""The handlers: one file per resource."""

from __future__ import annotations

from aiohttp import web

from gateway.routes import (
    advisories,
    generations,
    messages,
    models,
    responses,
    sessions,
    tokens,
    webhooks,
)
from gateway.routes.offline_work import batches, files
from gateway.routes.server import description, fleet, health, metrics, operator, page, version


def routes() -> list[web.RouteDef]:
    modules = (
        generations,
        responses,
        messages,
        files,
        batches,
        advisories,
        sessions,
        webhooks,
        models,
        tokens,
        health,
        fleet,
        metrics,
        version,
        operator,
        page,
        description,
    )
    return [route for module in modules for route in module.ROUTES]
