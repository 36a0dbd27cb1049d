"""What happens to every request: an id, a key, one place for errors, one line in the access log."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Sequence

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from gateway.config.tenants import Tenants
from gateway.http.request_record import RequestRecord
from gateway.metrics.metrics import Metrics
from gateway.protocol.anthropic_errors import anthropic_error, speaks_anthropic
from gateway.protocol.errors import (
    ApiError,
    BodyTooLargeError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    ServerError,
)

OPEN_PATHS = frozenset(
    {"/", "/health", "/ping", "/metrics", "/openapi.json", "/docs", "/v1/webhooks/typing"}
)  # no key needed; webhooks are signed
PROBED_PATHS = frozenset({"/health", "/ping", "/metrics"})  # by machines, several times a minute: not worth a line each
CLIENT_GONE = 499  # in log and metrics, nobody receives it
_MAX_LOGGED_PATH = 256
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

_log = logging.getLogger("hocket.gateway")
_access_log = logging.getLogger("hocket.access")


def tracking(metrics: Metrics, clock: Callable[[], float], *, has_log: bool) -> Middleware:
    """Outermost: the request's id and record, the access log, the count of responses."""

    @web.middleware
    async def track(request: web.Request, handler: Handler) -> web.StreamResponse:
        RequestRecord(request_id(request), clock()).attach(request)
        status = CLIENT_GONE
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            resource = request.match_info.route.resource
            metrics.num_responses[resource.canonical if resource else "unknown", status] += 1
            if has_log and request.path not in PROBED_PATHS:
                _write_access_log(request, status, clock())

    return track


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
        return error_response(error, request.path)
    except web.HTTPException as error:
        return error_response(_from_http(request, error), request.path)
    except asyncio.CancelledError:  # the client is gone, and its connection too
        raise
    except (web.RequestPayloadError, HttpProcessingError) as error:  # broken compression, chunks, heads of parts
        said = " ".join(str(error).split())
        return error_response(InvalidRequestError(f"The body is malformed: {said}", code="invalid_body"), request.path)
    except ConnectionError:  # it went while something was written; aiohttp would log that as our failure
        return web.Response(status=CLIENT_GONE)
    except Exception:
        _log.exception("Request %s failed", RequestRecord.of(request).id)
        return error_response(ServerError("The server failed; its log says why."), request.path)


def error_response(error: ApiError, path: str = "") -> web.Response:
    """In the shape that clients of that path expect."""
    body = anthropic_error(error) if speaks_anthropic(path) else error.body()
    return web.Response(status=error.status, body=body, content_type="application/json", headers=error.headers)


def _from_http(request: web.Request, error: web.HTTPException) -> ApiError:
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return MethodNotAllowedError(
            f"{request.method} is not allowed here, only {allowed}.", headers={"Allow": allowed}
        )
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return BodyTooLargeError(f"The body is larger than {request.client_max_size} bytes.")
    if error.status == 404:
        return NotFoundError(f"There is no {request.path}.")
    return InvalidRequestError(error.reason) if error.status < 500 else ServerError(error.reason)


def authentication(api_keys: Sequence[str]) -> Middleware:
    """Without keys, everybody may."""
    tenants = Tenants(api_keys)

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in OPEN_PATHS:
            RequestRecord.of(request).tenant = tenants.get(_authorization(request))
        return await handler(request)

    return authenticate


def _authorization(request: web.Request) -> str | None:
    """Anthropic's clients send their key in a header of its own."""
    given, key = request.headers.get("Authorization"), request.headers.get("x-api-key")
    return f"Bearer {key}" if given is None and key is not None else given


def _shown(path: str) -> str:
    """A path may be long, and need not be text."""
    cut = path if len(path) <= _MAX_LOGGED_PATH else path[:_MAX_LOGGED_PATH] + "..."
    return cut.encode(errors="replace").decode()


def _write_access_log(request: web.Request, status: int, now: float) -> None:
    """One JSON object per line; never a prompt, never an answer."""
    record = RequestRecord.of(request)
    entry: dict[str, object] = {
        "request_id": record.id,
        "client": request.remote,
        "method": request.method,
        "path": _shown(request.path),
        "status": status,
        "duration_ms": round((now - record.arrived_at) * 1e3, 1),
    }
    if record.tenant:
        entry["tenant"] = record.tenant
    if record.profile is not None:
        entry["class"] = record.profile.request_class.name.lower()
    if (generation := record.generation) is not None:
        entry["prompt_tokens"] = generation.num_prompt_tokens
        entry["output_tokens"] = generation.num_output_tokens
        if generation.first_token_at is not None:
            entry["ttft_ms"] = round((generation.first_token_at - record.arrived_at) * 1e3, 1)
    _access_log.info("%s", orjson.dumps(entry).decode())
