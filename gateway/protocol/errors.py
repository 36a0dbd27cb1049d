"""What a client is told when its request is refused or fails, in OpenAI's shape.

    ApiError
    ├── InvalidRequestError      400   ├── QueueFullError         429, with it OverloadedError, ...
    ├── AuthenticationError      401   ├── QuotaError             429
    ├── ForbiddenError           403   ├── ServerError            500
    ├── NotFoundError            404   ├── UnavailableError       503
    ├── MethodNotAllowedError    405   ├── DeadlineError          504
    ├── BodyTimeoutError         408   └── StorageFullError       507
    ├── ConflictError            409
    ├── BodyTooLargeError        413
    ├── MediaTypeError           415
    └── RangeError               416

The middleware turns them into HTTP, once.
"""

from __future__ import annotations

import math

import msgspec

from schedcore.api.types import EngineError, ErrorCode

MAX_MESSAGE_CHARACTERS = 500  # of what a client is told: messages quote names and values that it sent
_MAX_PARAM_CHARACTERS = 200


def shortened(text: str, most: int = MAX_MESSAGE_CHARACTERS) -> str:
    """At most `most` characters: beginning and end, which say what is wrong around a value that may be long."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 5]} ... {text[len(text) - end :]}"


def _printable(text: str) -> str:
    """Headers and paths that are quoted may hold bytes that are no text."""
    return text if text.isascii() else text.encode(errors="replace").decode()


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


class ApiError(Exception):
    status = 500
    type = "server_error"
    default_code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.message = _printable(shortened(message))
        super().__init__(self.message)
        self.param = None if param is None else _printable(shortened(param, _MAX_PARAM_CHARACTERS))
        self.code = code or self.default_code
        self.headers = headers or {}

    def body(self) -> bytes:
        return msgspec.json.encode(ErrorBody(ErrorDetail(self.message, self.type, self.param, self.code)))


class InvalidRequestError(ApiError):
    status = 400
    type = "invalid_request_error"


class AuthenticationError(InvalidRequestError):
    status = 401
    default_code = "invalid_api_key"


class ForbiddenError(InvalidRequestError):
    """A page of another site, or a name that is not this server's."""

    status = 403
    default_code = "forbidden"


class NotFoundError(InvalidRequestError):
    status = 404
    default_code = "not_found"


class MethodNotAllowedError(InvalidRequestError):
    status = 405
    default_code = "method_not_allowed"


class BodyTimeoutError(InvalidRequestError):
    status = 408
    default_code = "body_timeout"


class ConflictError(InvalidRequestError):
    status = 409
    default_code = "conflict"


class BodyTooLargeError(InvalidRequestError):
    status = 413
    default_code = "body_too_large"


class MediaTypeError(InvalidRequestError):
    status = 415
    default_code = "unsupported_media_type"


class RangeError(InvalidRequestError):
    status = 416
    default_code = "range_not_satisfiable"


class QueueFullError(ApiError):
    """`retry_after_seconds` is whole seconds, as the header wants it."""

    status = 429
    type = "rate_limit_error"
    default_code = "queue_full"

    def __init__(self, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(message, headers={"Retry-After": str(retry_after_seconds)})


class QuotaError(ApiError):
    """A tenant has all that it may have. Waiting alone does not help, so there is no Retry-After."""

    status = 429
    type = "insufficient_quota"
    default_code = "insufficient_quota"


class OverloadedError(QueueFullError):
    """The first token would come later than the server promises."""

    default_code = "overloaded"


class TooManyAdvisoriesError(QueueFullError):
    default_code = "too_many_advisories"


class ResourceUnavailableError(QueueFullError):
    """Too much flex traffic: for those who would rather be told than wait."""

    type = "resource_unavailable"
    default_code = "resource_unavailable"


class ServerError(ApiError):
    default_code = "internal_error"


class UnavailableError(ApiError):
    status = 503
    type = "service_unavailable_error"
    default_code = "engine_unavailable"


class DeadlineError(ApiError):
    status = 504
    type = "timeout_error"
    default_code = "request_timeout"


class StorageFullError(ApiError):
    """The server's disk is full. Nothing was changed; the same call may be repeated later."""

    status = 507
    default_code = "insufficient_storage"


def from_engine(error: EngineError | None) -> ApiError:
    """The engine's refusal or failure of a request. None: it was aborted on the server's side."""
    if error is None:
        return UnavailableError("The request was aborted by the server.", code="aborted")
    match error.code:
        case ErrorCode.QUEUE_FULL:
            return QueueFullError(error.message, retry_after_seconds=1)
        case ErrorCode.OVERLOADED:
            return OverloadedError(error.message, retry_after_seconds=math.ceil(error.retry_seconds))
        case ErrorCode.TOO_LONG:
            return InvalidRequestError(error.message, code="context_length_exceeded")
        case ErrorCode.INVALID:
            return InvalidRequestError(error.message)
        case ErrorCode.ENGINE_DEAD | ErrorCode.ENGINE_HUNG | ErrorCode.MOVED:
            return UnavailableError(error.message, code="engine_dead")
        case ErrorCode.POISON:  # a status that no client tries again by itself
            return InvalidRequestError(error.message, code="poison_request")
        case ErrorCode.NOT_FINITE:
            return ServerError(error.message, code="not_finite")
        case _:
            return ServerError(error.message)
