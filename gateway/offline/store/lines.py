"""Lines of output and error files, in OpenAI's format. Equal arguments give equal bytes."""

from __future__ import annotations

import msgspec


class RowResponse(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class RowError(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    param: str | None = None
    line: int | None = None  # of the input file, from 1: of rows that were refused before they ran


class Line(msgspec.Struct, frozen=True):
    id: str
    custom_id: str | None
    response: RowResponse | None
    error: RowError | None


def line_id(batch_id: str, index: int) -> str:
    return f"batch_req_{batch_id.removeprefix('batch_')}{index:06x}"


def response_line(
    batch_id: str, index: int, custom_id: str, *, status_code: int, request_id: str, body: bytes
) -> bytes:
    """For a row that got a response, be it an error: `body` is that response's JSON."""
    response = RowResponse(status_code, request_id, msgspec.Raw(body))
    return msgspec.json.encode(Line(line_id(batch_id, index), custom_id, response, None))


def error_line(batch_id: str, index: int, custom_id: str | None, error: RowError) -> bytes:
    """For a row that got none."""
    return msgspec.json.encode(Line(line_id(batch_id, index), custom_id, None, error))


EXPIRED = RowError("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = RowError("batch_cancelled", "This request was not executed because the batch was cancelled.")
