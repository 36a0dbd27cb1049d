"""The handlers: one file per resource."""

from __future__ import annotations

from aiohttp import web

from gateway.routes import (
    advisories,
    batches,
    chat,
    completions,
    files,
    health,
    metrics,
    models,
    page,
    sessions,
    tokens,
    version,
    webhooks,
)


def routes() -> list[web.RouteDef]:
    modules = (
        chat,
        completions,
        files,
        batches,
        advisories,
        sessions,
        webhooks,
        models,
        tokens,
        health,
        metrics,
        version,
        page,
    )
    return [route for module in modules for route in module.ROUTES]
