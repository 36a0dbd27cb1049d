"""What the store takes and returns. Times are Unix seconds, sizes bytes."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class BatchStatus(enum.StrEnum):
    """OpenAI's.

    validating ─► in_progress ─► finalizing ─► completed, expired
        │              └─► cancelling ─► cancelled
        └─► failed     (validating may also be cancelled)
    """

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


TERMINAL = frozenset({BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED})


class RowState(enum.IntEnum):
    PENDING = 0
    DONE = 1  # its line belongs to the output file
    FAILED = 2  # its line belongs to the error file
    EXPIRED = 3
    CANCELLED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    id: str  # "file-…", also its name on disk
    tenant: str  # fingerprint of the API key, "" without keys
    purpose: str
    filename: str  # as the client called it
    num_bytes: int
    created_at: int
    expires_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Of all finished rows of a batch, or of one row."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    id: str  # "batch_…"
    tenant: str
    endpoint: str  # as gateway/protocol/endpoints.py has them
    input_file_id: str
    completion_window: str  # as the client wrote it
    window_seconds: int
    status: BatchStatus
    created_at: int
    expires_at: int  # end of the window
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    metadata: dict[str, str] | None = None
    errors: bytes | None = None  # JSON list of {code, line, message, param}
    num_rows: int = 0  # so far, while the file is validated
    num_completed: int = 0
    num_failed: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    model: str | None = None  # that the first good row names
    output_file_id: str | None = None  # only of a batch that has ended
    error_file_id: str | None = None
    output_expires_after: int | None = None  # seconds after the files' creation
    outcome: BatchStatus | None = None  # what finalize() was asked for; no further row counts

    has_rows: bool = True  # its rows and results are still in the database

    @property
    def is_open(self) -> bool:
        return self.status not in TERMINAL

    @property
    def num_pending(self) -> int:
        return self.num_rows - self.num_completed - self.num_failed


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """A line of the input file, validated."""

    index: int
    custom_id: str | None
    body_offset: int  # in the input file
    body_length: int
    error_line: bytes | None  # of a bad row: it has failed already


@dataclass(frozen=True, slots=True)
class RowRecord:
    index: int  # 0-based line number in the input file; blank lines leave gaps
    custom_id: str
    body: bytes  # JSON, valid for the batch's endpoint when the batch was validated


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row that has ended. `line` is the whole line for the output or error file, without newline (lines.py)."""

    batch_id: str
    index: int
    is_error: bool
    line: bytes
    usage: TokenUsage = field(default_factory=TokenUsage)


@dataclass(frozen=True, slots=True)
class TenantUsage:
    num_bytes: int  # of all that accounts.py counts
    num_pending_rows: int  # of open batches
    num_open_batches: int
