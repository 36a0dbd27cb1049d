"""What happens to every request: an id, a key, one place for errors, one line in the access log."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Sequence

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.protocol.errors import (
    ApiError,
    BodyTooLargeError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    ServerError,
)
from gateway.request_record import RequestRecord
from gateway.services import SERVICES
from gateway.tenants import Tenants

OPEN_PATHS = frozenset({"/", "/health", "/metrics", "/v1/webhooks/typing"})  # no key needed; webhooks are signed
PROBED_PATHS = frozenset({"/health", "/metrics"})  # by machines, several times a minute: not worth a line each
CLIENT_GONE = 499  # in log and metrics, nobody receives it
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

_log = logging.getLogger("hocket.gateway")
_access_log = logging.getLogger("hocket.access")


@web.middleware
async def track(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Outermost: the request's id and record, the access log, the count of responses."""
    services = request.app[SERVICES]
    RequestRecord(request_id(request), services.clock()).attach(request)
    status = CLIENT_GONE
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        resource = request.match_info.route.resource
        services.metrics.num_responses[resource.canonical if resource else "unknown", status] += 1
        if services.config.enable_access_log and request.path not in PROBED_PATHS:
            _write_access_log(request, status, services.clock())


def request_id(request: web.Request) -> str:
    """The client's own, or a new one."""
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12)


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """For on_response_prepare, which streams pass through too. Refused advisories come before they have an id."""
    record = RequestRecord.find(request)
    response.headers["x-request-id"] = record.id if record is not None else request_id(request)


@web.middleware
async def map_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The only place where an exception becomes a response."""
    try:
        return await handler(request)
    except ApiError as error:
        return error_response(error)
    except web.HTTPException as error:
        return error_response(_from_http(request, error))
    except asyncio.CancelledError:  # the client is gone, and its connection too
        raise
    except ConnectionError:  # it went while something was written; aiohttp would log that as our failure
        return web.Response(status=CLIENT_GONE)
    except Exception:
        _log.exception("Request %s failed", RequestRecord.of(request).id)
        return error_response(ServerError("The server failed; its log says why."))


def error_response(error: ApiError) -> web.Response:
    return web.Response(status=error.status, body=error.body(), content_type="application/json", headers=error.headers)


def _from_http(request: web.Request, error: web.HTTPException) -> ApiError:
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return MethodNotAllowedError(
            f"{request.method} is not allowed here, only {allowed}.", headers={"Allow": allowed}
        )
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        limit = request.app[SERVICES].config.max_body_bytes
        return BodyTooLargeError(f"The body is larger than {limit} bytes.")
    if error.status == 404:
        return NotFoundError(f"There is no {request.path}.")
    return InvalidRequestError(error.reason) if error.status < 500 else ServerError(error.reason)


def authentication(api_keys: Sequence[str]) -> Middleware:
    """Without keys, everybody may."""
    tenants = Tenants(api_keys)

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in OPEN_PATHS:
            RequestRecord.of(request).tenant = tenants.get(request.headers.get("Authorization"))
        return await handler(request)

    return authenticate


def _write_access_log(request: web.Request, status: int, now: float) -> None:
    """One JSON object per line; never a prompt, never an answer."""
    record = RequestRecord.of(request)
    entry: dict[str, object] = {
        "request_id": record.id,
        "client": request.remote,
        "method": request.method,
        "path": request.path,
        "status": status,
        "duration_ms": round((now - record.arrived_at) * 1e3, 1),
    }
    if record.tenant:
        entry["tenant"] = record.tenant
    if (generation := record.generation) is not None:
        entry["class"] = generation.profile.request_class.name.lower()
        entry["prompt_tokens"] = generation.num_prompt_tokens
        entry["output_tokens"] = generation.num_output_tokens
        if generation.first_token_at is not None:
            entry["ttft_ms"] = round((generation.first_token_at - record.arrived_at) * 1e3, 1)
    _access_log.info("%s", orjson.dumps(entry).decode())
