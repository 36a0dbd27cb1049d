"""`/v1/files`: what is asked and what is answered."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.protocol.decoding.query import choice, whole_number
from gateway.protocol.errors import InvalidRequestError

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
BATCH_SECONDS = 30 * 86400  # that a file for a batch is kept, unless it says otherwise; others are kept until deleted
MIN_EXPIRY_SECONDS = 3600
MAX_EXPIRY_SECONDS = 30 * 86400
MAX_FILES = 10_000  # of one page


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: str = "processed"
    status_details: str | None = None


class FileList(msgspec.Struct, frozen=True):
    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"


class FileDeleted(msgspec.Struct, frozen=True):
    id: str
    object: str = "file"
    deleted: bool = True


class ListFiles(msgspec.Struct, frozen=True):
    purpose: str | None
    after: str | None
    limit: int
    is_ascending: bool


def decode_list_files(query: Mapping[str, str]) -> ListFiles:
    """Raises InvalidRequestError."""
    return ListFiles(
        purpose=query.get("purpose"),
        after=query.get("after"),
        limit=whole_number(query, "limit", default=MAX_FILES, low=1, high=MAX_FILES),
        is_ascending=choice(query, "order", ("asc", "desc"), default="desc") == "asc",
    )


def check_purpose(fields: Mapping[str, str]) -> str:
    """Raises InvalidRequestError."""
    if "purpose" not in fields:
        raise InvalidRequestError("Missing required parameter: 'purpose'.", param="purpose", code="missing_parameter")
    return choice(fields, "purpose", PURPOSES, default="")


def expiry_seconds(fields: Mapping[str, str], purpose: str) -> int | None:
    """From the form fields `expires_after[anchor]` and `expires_after[seconds]`. Raises InvalidRequestError."""
    anchor, seconds = "expires_after[anchor]", "expires_after[seconds]"
    if anchor not in fields and seconds not in fields:
        return BATCH_SECONDS if purpose == "batch" else None
    choice(fields, anchor, ("created_at",), default="")
    return whole_number(fields, seconds, default=0, low=MIN_EXPIRY_SECONDS, high=MAX_EXPIRY_SECONDS)
