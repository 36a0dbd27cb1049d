"""A batch while its rows run: what is known of it beside the store's record."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gateway.offline.database.backoff import Backoff
from gateway.offline.running.deadline import Dither, Forecast, forecast
from gateway.offline.running.rate_meter import RateMeter
from gateway.offline.running.row_execution import RowRun
from gateway.offline.running.row_queue import RowQueue
from gateway.offline.store.records import BatchRecord, BatchStatus, RowResult

RATE_HALF_LIFE_SECONDS = 60.0
FIRST_OUTPUT_TOKENS = 64  # of a row, before any has ended
BYTES_PER_TOKEN = 4
TROUBLE_SECONDS = (1.0, 300.0)  # first and longest pause of a batch that cannot be read, fed or ended


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a row is taken for until it has ended."""

    num_prompt_tokens: int
    cost: int


@dataclass(slots=True, eq=False)
class OpenBatch:
    record: BatchRecord
    queue: RowQueue
    forecast: Forecast = field(default_factory=lambda: Forecast(float("inf"), 0.0))
    outcome: BatchStatus | None = None  # set when no more rows may start
    runs: dict[int, tuple[RowRun, asyncio.Task[RowResult]]] = field(default_factory=dict)  # by index
    num_uncommitted: int = 0  # rows that ended, and whose results are not yet in the store
    dither: Dither = field(default_factory=Dither)
    is_ending: bool = False  # being finalised
    trouble: Backoff = field(default_factory=lambda: Backoff(*TROUBLE_SECONDS))  # with its file, or its rows
    retry_at: float = 0.0  # on the services' clock: it is let be until then
    num_sharing: int = 1  # gateways that run it
    is_done: bool = False  # none of its rows is pending, for no gateway
    look_at: float = 0.0  # on the services' clock: when to look for rows that others have left, again
    holds_rows: bool = False  # rows may be leased for it
    has_left: bool = False  # another gateway ends it
    _meter: RateMeter = field(default_factory=lambda: RateMeter(RATE_HALF_LIFE_SECONDS))
    _num_ended: int = 0
    _num_output_tokens: int = 0

    @property
    def num_left(self) -> int:
        """Rows for this gateway to run; others, as many as there are, take as many of those that wait."""
        return len(self.queue) // self.num_sharing + len(self.runs) + self.num_uncommitted

    @property
    def is_quiet(self) -> bool:
        """None of its rows is on its way."""
        return not self.runs and not self.num_uncommitted

    def estimate(self, body: bytes) -> Estimate:
        num_output = self._num_output_tokens // self._num_ended if self._num_ended else FIRST_OUTPUT_TOKENS
        num_prompt = len(body) // BYTES_PER_TOKEN + 1
        return Estimate(num_prompt, num_prompt + num_output)

    def note_end(self, num_output_tokens: int) -> None:
        self._num_ended += 1
        self._num_output_tokens += num_output_tokens
        self._meter.add(1)

    def delay(self, now: float) -> None:
        """It alone has a problem: others go on."""
        self.retry_at = now + self.trouble.pause()

    def refresh_forecast(self, now: float) -> None:
        """now: Unix seconds."""
        record = self.record
        self._meter.advance(now, is_counting=bool(self.runs))
        self.forecast = forecast(
            now=now,
            started_at=record.in_progress_at or record.created_at,
            ends_at=record.expires_at,
            num_left=self.num_left,
            rows_per_second=self._meter.per_second,
        )
