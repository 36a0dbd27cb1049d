"""What browsers are told: no to pages of other sites, and what CORS asks of a server to the allowed ones."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from gateway.http.allowed_hosts import AllowedHosts
from gateway.protocol.errors import ForbiddenError

_PREFLIGHT_SECONDS = "600"  # for which a browser need not ask again
_HEADER_NAMES = re.compile(r"[A-Za-z0-9, _-]{0,1024}")
_READABLE = "x-request-id, retry-after"
_SHOWN = 100  # characters of a wrong value


def browser_guard(allowed: AllowedHosts) -> Middleware:
    """Raises ForbiddenError for a Host that is not ours, or an Origin that may not talk to us."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get(hdrs.HOST, request.host)
        for name in (host, request.host):  # they differ where the request line has a whole URL
            if not allowed.allows_host(name):
                raise ForbiddenError(
                    f"This server is not known as '{name[:_SHOWN]}': --allowed-hosts names what else it is called.",
                    code="host_not_allowed",
                )
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None:
            return await handler(request)
        if not allowed.allows_origin(origin, host):
            raise ForbiddenError(
                f"Pages of '{origin[:_SHOWN]}' may not talk to this server: --allowed-origins names those that may.",
                code="origin_not_allowed",
            )
        is_preflight = request.method == hdrs.METH_OPTIONS and allowed.shares_with(origin)
        return _preflight(request) if is_preflight else await handler(request)

    return guard


def share_answers(allowed: AllowedHosts) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """For on_response_prepare, which streams and errors pass through too."""

    async def share(request: web.Request, response: web.StreamResponse) -> None:
        if not allowed.shares:
            return
        response.headers[hdrs.VARY] = "Origin"
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and allowed.shares_with(origin) and origin.isascii():
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _READABLE

    return share


def _preflight(request: web.Request) -> web.Response:
    asked = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "")
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST, DELETE",
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: asked if _HEADER_NAMES.fullmatch(asked) else "authorization, content-type",
        hdrs.ACCESS_CONTROL_MAX_AGE: _PREFLIGHT_SECONDS,
    }
    return web.Response(status=204, headers=headers)
