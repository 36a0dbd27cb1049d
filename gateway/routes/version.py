"""`GET /version`."""

from __future__ import annotations

from aiohttp import web

from gateway import __version__


async def version(request: web.Request) -> web.Response:
    return web.json_response({"version": __version__})


ROUTES = [web.get("/version", version)]
