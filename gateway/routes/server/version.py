"""`GET /version`."""

from __future__ import annotations

from aiohttp import web

from gateway import __version__
from gateway.protocol.server.status import ServerVersion
from gateway.routes.common import json_response


async def version(request: web.Request) -> web.Response:
    return json_response(ServerVersion(__version__))


ROUTES = [web.get("/version", version)]
