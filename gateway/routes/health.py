"""`GET /health`: 200 if a request sent now would be served."""

from __future__ import annotations

from aiohttp import web

from gateway.protocol.errors import UnavailableError
from gateway.services import SERVICES


async def health(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    try:
        info = services.ready_engine()
    except UnavailableError as error:
        body: dict[str, object] = {"status": error.code, "reason": error.message}
        return web.json_response(body, status=error.status)
    names = services.config.served_model_names
    return web.json_response({"status": "ok", "model": names[0], "device": info.device, "dtype": info.dtype})


ROUTES = [web.get("/health", health)]
