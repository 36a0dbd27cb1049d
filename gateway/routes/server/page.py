"""`GET /`: a chat in the browser, one file without outside resources."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

_PAGE = Path(__file__).parents[2] / "static" / "chat.html"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
}


async def page(request: web.Request) -> web.Response:
    return web.Response(body=_PAGE.read_bytes(), content_type="text/html", charset="utf-8", headers=HEADERS)


ROUTES = [web.get("/", page)]
