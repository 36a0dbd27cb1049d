"""The handlers: one file per resource."""

from __future__ import annotations

from aiohttp import web

from gateway.routes import (
    advisories,
    chat,
    completions,
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
    modules = (chat, completions, advisories, sessions, webhooks, models, tokens, health, metrics, version, page)
    return [route for module in modules for route in module.ROUTES]
