"""`GET /metrics`, for Prometheus."""

from __future__ import annotations

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from gateway.metrics.exposition import Exposition

EXPOSITION = web.AppKey("EXPOSITION", Exposition)


async def metrics(request: web.Request) -> web.Response:
    return web.Response(body=request.app[EXPOSITION].text(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


ROUTES = [web.get("/metrics", metrics)]
