"""`GET /openapi.json`, and `GET /docs`: the same as a page, one file without outside resources."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from gateway import __version__
from gateway.config.config import GatewayConfig
from gateway.protocol.server.document import openapi_document
from gateway.routes.server.page import HEADERS
from gateway.services import SERVICES

_PAGE = Path(__file__).parents[2] / "static" / "docs.html"


def document(config: GatewayConfig) -> bytes:
    """Made at the start, and the same from then on."""
    return openapi_document(__version__, has_keys=bool(config.api_keys), root_path=config.root_path)


async def openapi(request: web.Request) -> web.Response:
    return web.Response(body=document(request.app[SERVICES].config), content_type="application/json")


async def docs(request: web.Request) -> web.Response:
    return web.Response(body=_PAGE.read_bytes(), content_type="text/html", charset="utf-8", headers=HEADERS)


ROUTES = [web.get("/openapi.json", openapi), web.get("/docs", docs)]
