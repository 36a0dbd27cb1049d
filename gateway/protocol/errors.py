"""What a client is told when its request is refused or fails, in OpenAI's shape.

    ApiError
    ├── InvalidRequestError      400   ├── QueueFullError         429, with it ResourceUnavailableError
    ├── AuthenticationError      401   ├── QuotaError             429
    ├── NotFoundError            404   ├── ServerError            500
    ├── MethodNotAllowedError    405   ├── UnavailableError       503
    ├── BodyTimeoutError         408   ├── DeadlineError          504
    ├── ConflictError            409   └── StorageFullError       507
    ├── BodyTooLargeError        413
    ├── MediaTypeError           415
    └── RangeError               416

The middleware turns them into HTTP, once.
"""

from __future__ import annotations

import msgspec

from schedcore.types import EngineError, ErrorCode


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
        super().__init__(message)
        self.message = message
        self.param = param
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
        case ErrorCode.TOO_LONG:
            return InvalidRequestError(error.message, code="context_length_exceeded")
        case ErrorCode.INVALID:
            return InvalidRequestError(error.message)
        case ErrorCode.ENGINE_DEAD:
            return UnavailableError(error.message, code="engine_dead")
        case _:
            return ServerError(error.message)
