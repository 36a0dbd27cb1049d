"""One batch of a run, and the account of its rows: each comes back once."""

from __future__ import annotations

from dataclasses import dataclass, field

from .types import Batch, BatchResult, ResultLine, RowError

_TOO_MUCH = "rows_quota_exceeded"  # a batch that failed because too many rows were waiting already


@dataclass(slots=True, eq=False)
class Part:
    """One batch of a run, and which of its rows have come back."""

    batch: Batch
    # custom_id -> place in the input, of rows without a result so far; None if the input could not be read
    missing: dict[str, int] | None
    first_index: int
    cursor: str | None = None
    seen: set[str] = field(default_factory=set)  # only while `missing` is unknown

    def take(self, line: ResultLine) -> BatchResult | None:
        """None if the row has come back before."""
        custom_id = line.custom_id or ""
        if self.missing is None:
            key = custom_id or line.id or ""
            if key in self.seen:
                return None
            self.seen.add(key)
            return line.result(self.batch.id, None)
        index = self.missing.pop(custom_id, None)
        return None if index is None else line.result(self.batch.id, index)

    @property
    def is_complete(self) -> bool:
        if self.missing is None:
            return 0 < self.batch.request_counts.total <= len(self.seen)
        return not self.missing

    @property
    def was_too_much(self) -> bool:
        errors = self.batch.errors.data if self.batch.errors else ()
        return self.batch.status == "failed" and any(error.code == _TOO_MUCH for error in errors)

    def leftovers(self) -> list[BatchResult]:
        """An error for each row that the batch ended without."""
        errors = self.batch.errors.data if self.batch.errors else ()
        by_line = {error.line: RowError(code=error.code, message=error.message) for error in errors}
        status = self.batch.status
        other = RowError(code=f"batch_{status}", message=f"the batch ended as {status} without a result for this row")
        other = by_line.get(None, other)
        return [
            BatchResult(
                custom_id=custom_id,
                batch_id=self.batch.id,
                index=index,
                error=by_line.get(index - self.first_index + 1, other),
            )
            for custom_id, index in (self.missing or {}).items()
        ]
