"""Errors as Anthropic's clients expect them, on the routes that speak their protocol."""

from __future__ import annotations

import msgspec

from gateway.protocol.errors import ApiError

MESSAGES_PATH = "/v1/messages"  # and everything below it
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicDetail(msgspec.Struct, frozen=True):
    type: str
    message: str


class AnthropicError(msgspec.Struct, frozen=True):
    error: AnthropicDetail
    type: str = "error"


def speaks_anthropic(path: str) -> bool:
    return path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/")


def anthropic_error(error: ApiError) -> bytes:
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return msgspec.json.encode(AnthropicError(AnthropicDetail(kind, error.message)))
