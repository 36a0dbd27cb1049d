"""`GET /fleet`: the nodes behind this gateway."""

from __future__ import annotations

from aiohttp import web

from gateway.protocol.errors import NotFoundError
from gateway.routes.common import json_response
from gateway.services import SERVICES


async def fleet(request: web.Request) -> web.Response:
    engine = request.app[SERVICES].fleet
    if engine is None:
        raise NotFoundError("This server has an engine of its own: --fleet-listen lets nodes come to it.")
    return json_response(engine.status())


ROUTES = [web.get("/fleet", fleet)]
