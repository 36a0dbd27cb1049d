"""How batches look in a terminal: a table of several, one in detail, and one at work."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from hocket import Batch

_STYLES = {"completed": "green", "failed": "red", "expired": "red", "cancelled": "yellow", "cancelling": "yellow"}
_RATE_SECONDS = 30.0  # rates are those of this time
_STALL_SECONDS = 10.0
_MAX_ERRORS = 10
_QUIET_SECONDS = 30.0  # between lines where no bar can be drawn


def duration(seconds: float) -> str:
    """`45 s`, `3 min`, `2 h 5 min`, `4 d`: as much as one wants to know."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    if whole < 90 * 60:
        return f"{round(whole / 60)} min"
    hours, rest = divmod(whole, 3600)
    if hours >= 48:
        return f"{round(whole / 86400)} d"
    return f"{hours} h {rest // 60} min" if rest >= 60 else f"{hours} h"


def rows_done(batch: Batch) -> int:
    return batch.request_counts.completed + batch.request_counts.failed


def when(batch: Batch, now: float) -> str:
    """How long it took, or how long it may still take."""
    if batch.ended_at is not None:
        return f"took {duration(batch.ended_at - batch.created_at)}"
    return f"{duration(batch.expires_at - now)} left" if batch.expires_at else ""


def table(batches: Sequence[Batch], now: float) -> Table:
    """Fits 80 columns, with ids that can be copied."""
    has_failures = any(batch.request_counts.failed for batch in batches)
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    shown.add_column("batch", no_wrap=True, min_width=max((len(batch.id) for batch in batches), default=0))
    shown.add_column("status", no_wrap=True, min_width=max((len(batch.status) for batch in batches), default=0))
    shown.add_column("rows", justify="right", no_wrap=True)
    if has_failures:
        shown.add_column("failed", justify="right", no_wrap=True)
    shown.add_column("time", no_wrap=True)
    for batch in batches:
        counts = batch.request_counts
        failed = [f"[red]{counts.failed:,}[/]" if counts.failed else ""] if has_failures else []
        rows = f"{rows_done(batch):,}/{counts.total:,}" if counts.total else "–"
        time = f"ended {duration(now - batch.ended_at)} ago" if batch.ended_at is not None else when(batch, now)
        shown.add_row(batch.id, _styled(batch.status), rows, *failed, time)
    return shown


def details(batch: Batch, now: float) -> Table:
    counts, usage = batch.request_counts, batch.usage
    failed = f", [red]{counts.failed:,} failed[/]" if counts.failed else ""
    entries = {
        "batch": batch.id,
        "status": _styled(batch.status),
        "rows": f"{rows_done(batch):,} of {counts.total:,} done{failed}" if counts.total else "not counted yet",
        "tokens": f"{usage.input_tokens:,} in, {usage.output_tokens:,} out" if usage and usage.input_tokens else "",
        "model": batch.model or "",
        "created": f"{datetime.fromtimestamp(batch.created_at):%Y-%m-%d %H:%M:%S}, "
        f"{duration(now - batch.created_at)} ago",
        "time": when(batch, now) + (f" of {batch.completion_window}" if not batch.is_over else ""),
        "metadata": ", ".join(f"{key}={value}" for key, value in (batch.metadata or {}).items()),
        "input": batch.input_file_id,
        "output": batch.output_file_id or "",
        "errors": batch.error_file_id or "",
    }
    shown = Table.grid(padding=(0, 2))
    for name, value in entries.items():
        if value:
            shown.add_row(f"[dim]{name}[/]", value)
    return shown


def complaints(batch: Batch) -> list[str]:
    """What the server found wrong with the batch or its lines, the first of them."""
    errors = batch.errors.data if batch.errors else ()
    said = [f"line {error.line}: {error.message}" if error.line else error.message for error in errors[:_MAX_ERRORS]]
    return said + ([f"and {len(errors) - _MAX_ERRORS} more"] if len(errors) > _MAX_ERRORS else [])


def _styled(status: str) -> str:
    style = _STYLES.get(status)
    return f"[{style}]{status}[/]" if style else status


class Rates:
    """Rows and output tokens per second, over the last half minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()  # when, rows, tokens

    def add(self, now: float, batch: Batch) -> None:
        tokens = batch.usage.output_tokens if batch.usage else 0
        self._samples.append((now, rows_done(batch), tokens))
        while len(self._samples) > 2 and self._samples[1][0] <= now - _RATE_SECONDS:
            self._samples.popleft()

    @property
    def rows(self) -> float:
        return self._per_second(1)

    @property
    def tokens(self) -> float:
        return self._per_second(2)

    @property
    def is_stalled(self) -> bool:
        """Nothing has come back for a while."""
        return bool(self._samples) and self._samples[-1][0] - self._samples[0][0] >= _STALL_SECONDS and not self.rows

    def _per_second(self, column: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        first, last = self._samples[0], self._samples[-1]
        return (last[column] - first[column]) / (last[0] - first[0]) if last[0] > first[0] else 0.0


class Watch:
    """One batch at work: a bar in a terminal, else a line now and then. On stderr; use it in a `with` block."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.fields[status]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("[dim]{task.fields[pace]}[/]"),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        self._task: TaskID | None = None
        self._rates = Rates()
        self._said: tuple[str, float] = ("", 0.0)

    def __enter__(self) -> Watch:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def is_stalled(self) -> bool:
        return self._rates.is_stalled

    def show(self, batch: Batch) -> None:
        now, total = time.monotonic(), batch.request_counts.total
        self._rates.add(now, batch)
        pace = self.pace(batch)
        if not self._console.is_terminal:
            done = f": {rows_done(batch):,} of {total:,} rows done" if total else ""
            self._say(batch.status, ", ".join(filter(None, (batch.status + done, pace))), now)
            return
        if self._task is None:
            self._task = self._progress.add_task("", status=batch.status, pace="", total=None)
        status = _styled(batch.status)
        self._progress.update(self._task, completed=rows_done(batch), total=total or None, status=status, pace=pace)

    def trouble(self, text: str) -> None:
        """Why nothing moves."""
        if self._task is not None:
            self._progress.update(self._task, pace=f"[yellow]{escape(text)}[/]")
        elif not self._console.is_terminal:
            self._say(text, text, time.monotonic())

    def pace(self, batch: Batch) -> str:
        """`12.3 rows/s, 456 tokens/s, 3 failed, done in 2 min`."""
        counts = batch.request_counts
        num_left = counts.total - rows_done(batch)
        parts = []
        if batch.status == "in_progress" and self._rates.rows > 0:
            parts = [f"{self._rates.rows:.1f} rows/s", f"{self._rates.tokens:,.0f} tokens/s"]
        if counts.failed:
            parts.append(f"{counts.failed:,} failed")
        if batch.status == "in_progress" and self._rates.rows > 0 and num_left:
            parts.append(f"done in {duration(num_left / self._rates.rows)}")
        return ", ".join(parts)

    def _say(self, status: str, text: str, now: float) -> None:
        if status != self._said[0] or now - self._said[1] >= _QUIET_SECONDS:
            self._said = (status, now)
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
