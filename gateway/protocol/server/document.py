"""The server's routes as an OpenAPI 3.1 document. Shapes come from the types that bodies are decoded to and made of."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import UnionType
from typing import Any

import msgspec

from gateway.protocol.anthropic_errors import AnthropicError
from gateway.protocol.chat import ChatLogprob
from gateway.protocol.errors import ErrorBody
from gateway.protocol.server.operation import HTML, JSON, TEXT, Operation
from gateway.protocol.server.operations import OPERATIONS
from gateway.protocol.server.status import HealthStatus

_REFERENCE = "#/components/schemas/{name}"
_EVENTS = "text/event-stream"
_ALWAYS = (400, 403, 500, 503)  # of any route: a broken request, a foreign page, a bug, no room for the connection
_MEANINGS = {
    400: "The request is malformed, or asks for what is not supported; `param` names the field",
    401: "No key, a wrong one, or a wrong signature",
    403: "A page of another site, or a name that is not this server's",
    404: "It does not exist, or not for this key; or the server was started without it",
    408: "The body came too slowly",
    409: "It is in use, or has ended",
    413: "The body is too large",
    415: "The body is of another type",
    416: "The range is outside the file",
    429: "A queue or a quota is full; `Retry-After` says when to try again, if that helps",
    500: "The server is wrong; its log says more under the request's id",
    503: "The engine is not ready, or the server is full or shutting down",
    504: "The request's time is up",
    507: "The server's disk is full; nothing was changed",
}


@functools.cache
def openapi_document(version: str, *, has_keys: bool, root_path: str = "") -> bytes:
    """JSON; takes some 50 ms when it is first asked for. has_keys: whether clients need one."""
    schemas, components = _schemas(OPERATIONS)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        described = _operation(operation, schemas, has_keys)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    keys = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    document = {
        "openapi": "3.1.0",
        "info": {"title": "hocket", "version": version, "description": "docs/api.md says more of every field."},
        "servers": [{"url": root_path.rstrip("/") or "/"}],
        "paths": paths,
        "components": {"schemas": components, **({"securitySchemes": keys} if has_keys else {})},
    }
    return msgspec.json.encode(document)


def _schemas(operations: Sequence[Operation]) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    """By type, and the components that they refer to."""
    types = [kind for operation in operations for kind in (operation.body, operation.answer) if kind is not None]
    unique: list[Any] = [ErrorBody, AnthropicError, ChatLogprob, HealthStatus]
    for kind in types:
        unique += [part for part in _options(kind) if part not in unique]
    found, components = msgspec.json.schema_components(unique, ref_template=_REFERENCE)
    return dict(zip(map(repr, unique), found, strict=True)), components


def _schema(kind: Any, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    found = [schemas[repr(part)] for part in _options(kind)]
    return found[0] if len(found) == 1 else {"oneOf": found}


def _options(kind: Any) -> tuple[Any, ...]:
    return kind.__args__ if isinstance(kind, UnionType) else (kind,)


def _operation(operation: Operation, schemas: dict[Any, dict[str, Any]], has_keys: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": _responses(operation, schemas, has_keys),
    }
    if parameters := _parameters(operation):
        described["parameters"] = parameters
    if operation.body is not None:
        content = {JSON: {"schema": _schema(operation.body, schemas)}}
        described["requestBody"] = {"required": True, "content": content}
    if operation.form is not None:
        content = {"multipart/form-data": {"schema": operation.form}}
        described["requestBody"] = {"required": True, "content": content}
    if has_keys and operation.needs_key:
        described["security"] = [{"bearer": []}, {"x-api-key": []}]
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    of_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in operation.path_parameters
    ]
    of_query = [
        {"name": parameter.name, "in": "query", "schema": parameter.schema, "description": parameter.meaning}
        for parameter in operation.query
    ]
    return of_path + of_query


def _responses(operation: Operation, schemas: dict[Any, dict[str, Any]], has_keys: bool) -> dict[str, Any]:
    success: dict[str, Any] = {"description": operation.summary}
    if operation.answer is not None:
        success["content"] = {JSON: {"schema": _schema(operation.answer, schemas)}}
    elif operation.media:
        is_text = operation.media in (TEXT, HTML)
        success["content"] = {operation.media: {"schema": {"type": "string"} if is_text else {}}}
    if operation.streams:
        # No type: some tools hold it against the whole text, others against each event with its name and data.
        success["content"][_EVENTS] = {"schema": {"description": "Server-sent events, as docs/api.md lists them"}}
    responses: dict[str, Any] = {str(operation.status): success}
    if operation.media and "content" in success and operation.media not in (JSON, TEXT, HTML):
        responses["206"] = success  # a range of it
    needs_key = (401,) if has_keys and operation.needs_key else ()
    for status in sorted({*_ALWAYS, *operation.errors, *needs_key}):
        responses[str(status)] = _error(operation, status, schemas)
    return responses


def _error(operation: Operation, status: int, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    shape = schemas[repr(AnthropicError if operation.is_anthropic else ErrorBody)]
    if operation.path == "/health" and status == 503:  # it says the reason as it says that all is well
        shape = {"anyOf": [schemas[repr(HealthStatus)], shape]}
    described: dict[str, Any] = {"description": _MEANINGS[status]}
    if operation.path != "/ping" or status != 503:
        described["content"] = {JSON: {"schema": shape}}
    return described
