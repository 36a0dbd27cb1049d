"""The handlers: one file per resource."""

from __future__ import annotations

from aiohttp import web

from gateway.routes import chat, completions, health, metrics, models, page, tokens, version


def routes() -> list[web.RouteDef]:
    modules = (chat, completions, models, tokens, health, metrics, version, page)
    return [route for module in modules for route in module.ROUTES]
