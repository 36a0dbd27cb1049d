"""Batches and results of rows, typed; OpenAI's fields. Times are seconds since the epoch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hocket._decode import decode
from hocket._types import ChatCompletion, Completion, Usage

OVER = frozenset({"completed", "failed", "expired", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    total: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchError:
    """Why a batch failed, or what is wrong with one of its lines. Lines are counted from 1."""

    code: str | None = None
    message: str = ""
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchErrors:
    data: tuple[BatchError, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUsage:
    """Of all rows that have finished."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """`status`: validating, in_progress, finalizing, cancelling; then one of completed, failed, expired, cancelled."""

    id: str
    status: str
    endpoint: str = ""
    input_file_id: str = ""
    output_file_id: str | None = None
    error_file_id: str | None = None
    completion_window: str = ""
    created_at: int = 0
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    errors: BatchErrors | None = None
    metadata: dict[str, str] | None = None
    model: str | None = None
    usage: BatchUsage | None = None

    @property
    def is_over(self) -> bool:
        return self.status in OVER

    @property
    def ended_at(self) -> int | None:
        return self.completed_at or self.failed_at or self.expired_at or self.cancelled_at


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPage:
    data: tuple[Batch, ...]
    has_more: bool = False
    last_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """`line`: of the input file, from 1, if the row was refused before it ran."""

    code: str | None = None
    message: str = ""
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResponse:
    """What the row's request was answered: a status of HTTP, and the body that it would have had there."""

    status_code: int = 0
    request_id: str | None = None
    body: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What became of one row: an answer, or `error`; never both.

    `index` is the row's place in what was given to `run`, counted from 0; None if that is not known.
    """

    custom_id: str
    batch_id: str
    index: int | None = None
    id: str | None = None
    response: RowResponse | None = None
    error: RowError | None = None

    @property
    def is_ok(self) -> bool:
        return self.error is None

    def as_line(self) -> dict[str, Any]:
        """The row in the form of OpenAI's output and error files."""
        response = None if self.response is None else asdict(self.response)
        error = None
        if self.error is not None and response is None:
            error = {name: value for name, value in asdict(self.error).items() if value is not None}
        return {"id": self.id, "custom_id": self.custom_id, "response": response, "error": error}

    @property
    def answer(self) -> ChatCompletion | Completion | None:
        """What the same request would have returned by itself; None after an error. Raises APIResponseError."""
        if self.error is not None or self.response is None:
            return None
        body = self.response.body or {}
        return decode(ChatCompletion, body) if _is_chat(body) else decode(Completion, body)

    @property
    def text(self) -> str:
        """Of choice 0; empty after an error."""
        answer = self.answer
        return answer.text if answer is not None else ""

    @property
    def usage(self) -> Usage | None:
        answer = self.answer
        return answer.usage if answer is not None else None


def _is_chat(body: dict[str, Any]) -> bool:
    choices = body.get("choices") or [{}]
    return isinstance(choices[0], dict) and "message" in choices[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultLine:
    """One line of an output or error file."""

    custom_id: str | None = None
    id: str | None = None
    response: RowResponse | None = None
    error: RowError | None = None

    def result(self, batch_id: str, index: int | None) -> BatchResult:
        return BatchResult(
            custom_id=self.custom_id or "",
            batch_id=batch_id,
            index=index,
            id=self.id,
            response=self.response,
            error=self.error or _error_in(self.response),
        )


def _error_in(response: RowResponse | None) -> RowError | None:
    if response is None:
        return RowError(code="no_response", message="the row has neither an answer nor an error")
    if response.status_code < 400:
        return None
    said = (response.body or {}).get("error")
    said = said if isinstance(said, dict) else {}
    code = said.get("code") or said.get("type") or response.status_code
    message = str(said.get("message") or f"HTTP status {response.status_code}")
    param = said.get("param")
    return RowError(code=str(code), message=message, param=None if param is None else str(param))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPage:
    """Rows in the order in which they finished. `cursor` is what to ask `after` for the next page."""

    data: tuple[ResultLine, ...]
    batch: Batch
    cursor: str | None = None
    has_more: bool = False
