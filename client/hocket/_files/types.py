"""Files that a server keeps, typed; OpenAI's fields. Times are seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FileObject:
    """A file that the server keeps. `bytes` is its size."""

    id: str
    bytes: int = 0
    created_at: int = 0
    expires_at: int | None = None
    filename: str = ""
    purpose: str = ""
    status: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePage:
    data: tuple[FileObject, ...]
    has_more: bool = False
    last_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    id: str
    deleted: bool = True
