"""`/v1/batches`: what is asked and what is answered."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.protocol.decoding.decode import decode_json
from gateway.protocol.endpoints import BatchPath
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.files import MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS

MAX_BATCHES = 100  # of one page
MAX_METADATA = 16
MIN_WINDOW_SECONDS = 1
MAX_WINDOW_SECONDS = 30 * 86400
_WINDOW = re.compile(r"([0-9]{1,9})(s|m|h|d)")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]


class ExpiresAfter(msgspec.Struct, frozen=True):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS)]


class CreateBatch(msgspec.Struct, frozen=True, kw_only=True):
    input_file_id: str
    endpoint: BatchPath
    completion_window: str
    metadata: Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=MAX_METADATA)] | None = None
    output_expires_after: ExpiresAfter | None = None


_decoder = msgspec.json.Decoder(CreateBatch)


def decode_create_batch(body: bytes) -> CreateBatch:
    """Raises InvalidRequestError."""
    return decode_json(_decoder, body)


def window_seconds(text: str) -> int:
    """`24h`, `30m`, `7d`, `90s`. Raises InvalidRequestError."""
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _UNIT_SECONDS[match[2]] if match else 0
    if not MIN_WINDOW_SECONDS <= seconds <= MAX_WINDOW_SECONDS:
        raise InvalidRequestError(
            "Invalid value for 'completion_window': expected a time such as 24h, 30m or 7d, at most 30d.",
            param="completion_window",
            code="invalid_value",
        )
    return seconds


class BatchErrors(msgspec.Struct, frozen=True):
    data: msgspec.Raw  # [{code, line, message, param}]
    object: str = "list"


class RequestCounts(msgspec.Struct, frozen=True):
    total: int
    completed: int
    failed: int


class InputTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(msgspec.Struct, frozen=True):
    data: list[BatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"


class BatchResults(msgspec.Struct, frozen=True, kw_only=True):
    """Lines in the order in which rows finished. `cursor` is the next page's `after`."""

    object: str = "list"
    data: list[msgspec.Raw]
    cursor: str
    has_more: bool
    batch: BatchObject
