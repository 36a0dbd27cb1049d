"""What can go wrong.

HocketError
├── APIConnectionError            the server was not reached, or the connection broke
│   └── APITimeoutError           a phase took longer than allowed: connect, read, write or pool
├── APIStatusError                the server answered with an error status
│   ├── BadRequestError           400, 413, 422: the request is wrong; sending it again will not help
│   ├── AuthenticationError       401
│   ├── PermissionDeniedError     403
│   ├── NotFoundError             404: unknown model or path
│   ├── RateLimitError            429: too much at once; `retry_after`
│   └── ServerError               5xx
│       └── ServiceUnavailableError  503: starting, draining, or the engine is gone
├── APIResponseError              the server answered something that is not an answer
└── StreamError                   a stream that had begun failed or stopped before its end
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

NOTHING: Mapping[str, str] = {}


class HocketError(Exception):
    """Base of everything this package raises on purpose. `message` is what the server or the network said."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class APIConnectionError(HocketError):
    """The server was not reached, or the connection broke before the answer was complete."""


class APITimeoutError(APIConnectionError):
    """One phase took longer than its timeout. `phase`: connect, read, write or pool."""

    def __init__(self, message: str, *, phase: str = "") -> None:
        super().__init__(message)
        self.phase = phase


class _ReportedError(HocketError):
    """Fields of the server's error object. All have defaults so that instances can be pickled and copied."""

    def __init__(
        self,
        message: str,
        *,
        details: Mapping[str, str] = NOTHING,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.type = details.get("type")
        self.code = details.get("code")
        self.param = details.get("param")
        self.request_id = request_id

    def _prefix(self) -> str:
        return ""

    def __str__(self) -> str:
        known = {"param": self.param, "code": self.code, "request": self.request_id}
        details = ", ".join(f"{name}: {value}" for name, value in known.items() if value)
        return self._prefix() + self.message + (f" ({details})" if details else "")


class APIStatusError(_ReportedError):
    """The server answered with an error. `param` names the parameter at fault, `retry_after` is in seconds."""

    def __init__(
        self,
        message: str,
        *,
        status_code: int = 0,
        retry_after: float | None = None,
        details: Mapping[str, str] = NOTHING,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, details=details, request_id=request_id)
        self.status_code = status_code
        self.retry_after = retry_after

    def _prefix(self) -> str:
        return f"HTTP {self.status_code}: "


class BadRequestError(APIStatusError):
    """The request is wrong; sending it again will not help."""


class AuthenticationError(APIStatusError):
    """The API key is missing or wrong."""


class PermissionDeniedError(APIStatusError):
    """The API key may not do this."""


class NotFoundError(APIStatusError):
    """No such model, or no such path."""


class RateLimitError(APIStatusError):
    """Too much at once; `retry_after` says in seconds when to come back, if the server knows."""


class ServerError(APIStatusError):
    """The server failed."""


class ServiceUnavailableError(ServerError):
    """The server is starting, draining, or has lost its engine."""


class APIResponseError(HocketError):
    """The status was fine, but the body is not what this client understands. Is it a hocket server?"""


class StreamError(_ReportedError):
    """A stream that had begun failed or stopped before its end. What came is in the stream's `snapshot`."""


_BY_STATUS: dict[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    413: BadRequestError,
    422: BadRequestError,
    429: RateLimitError,
    503: ServiceUnavailableError,
}


def status_error(response: httpx.Response) -> APIStatusError:
    """The exception for a response that was read and is no success."""
    status = response.status_code
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else APIStatusError)
    message, details = _error_object(response)
    return kind(
        message,
        status_code=status,
        retry_after=parse_retry_after(response.headers.get("retry-after"), time.time()),
        request_id=response.headers.get("x-request-id"),
        details=details,
    )


def stream_error(payload: Any, request_id: str | None) -> StreamError:
    """The exception for an error event: `{"error": {"message": ...}}`, or the inner object alone."""
    message, details = _said(payload)
    return StreamError(
        message or "the server reported an error without a message", details=details, request_id=request_id
    )


def transport_error(error: httpx.RequestError, base_url: str) -> APIConnectionError:
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx.TimeoutException):
        phase = type(error).__name__.removesuffix("Timeout").lower()
        return APITimeoutError(f"{base_url}: {phase} timed out", phase=phase)
    if isinstance(error, httpx.ConnectError):
        return APIConnectionError(f"cannot connect to {base_url}: {reason}")
    return APIConnectionError(f"the connection to {base_url} broke: {reason}")


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait, from either form that RFC 9110 allows. `now` is in seconds since the epoch."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _error_object(response: httpx.Response) -> tuple[str, Mapping[str, str]]:
    try:
        message, details = _said(json.loads(response.content))
    except ValueError:
        message, details = response.text.strip()[:200], NOTHING
    return message or response.reason_phrase or "no message", details


def _said(payload: Any) -> tuple[str, Mapping[str, str]]:
    error = payload.get("error", payload) if isinstance(payload, dict) else payload
    if not isinstance(error, dict):
        return ("" if error is None else str(error)), NOTHING
    details = {name: str(error[name]) for name in ("type", "code", "param") if error.get(name) is not None}
    return str(error.get("message") or error.get("detail") or ""), details
