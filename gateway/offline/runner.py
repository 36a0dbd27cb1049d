"""Runs the rows of open batches on the engine, and nothing gets lost on the way.

A turn: learn of batches that began or were cancelled, look at the clock (windows that end, batches that must hurry),
take back what exceeds a tenant's share, feed rows, end the batches that are done. A turn follows when a row ends, when
the store changes, or after a second.

A row is pending in the store until its result is committed. Everything before that may vanish at any time: the engine
dies, the gateway is killed, the row is taken back; it then runs again. Results that cannot be committed (the disk is
full, the database away) wait in memory, nothing new starts meanwhile, and the commit is repeated until it succeeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

from gateway.offline.batch_feed import BatchFeed
from gateway.offline.fair_share import FairShare, LookAhead
from gateway.offline.offline_metrics import MAX_MARGINS
from gateway.offline.open_batch import Estimate, OpenBatch
from gateway.offline.records import BatchRecord, BatchStatus, RowRecord, RowResult
from gateway.offline.request_budget import RequestBudget
from gateway.offline.row_execution import NotNowError, RowRun
from gateway.offline.store import OfflineStore
from gateway.protocol.errors import ApiError, NotFoundError, ServerError
from gateway.services import Services
from schedcore.types import RequestClass

TURN_SECONDS = 1.0
LEARN_SECONDS = 5.0  # between two looks at the store if it says nothing
PAUSE_SECONDS = 0.25  # after the engine refused a row or was away
REQUESTS_PER_ROW = 2  # in the engine, on average; with more, rows wait for each other
RETRY_SECONDS = (0.25, 30.0)  # first and longest wait for a store that is blocked

_log = logging.getLogger("hocket.offline")


class OfflineRunner:
    """One per store. `run()` until it is cancelled, then `close()`."""

    def __init__(self, services: Services, store: OfflineStore, look_ahead: LookAhead, max_promoted: int) -> None:
        """max_promoted: rows that may be in the engine as online requests at a time."""
        self.metrics = services.metrics.offline
        self._services = services
        self._store = store
        self._share = FairShare(look_ahead)
        self._budget = RequestBudget(REQUESTS_PER_ROW * look_ahead.max_rows)
        self._max_promoted = max_promoted
        self._num_promoted = 0
        self._batches: dict[str, OpenBatch] = {}
        self._results: list[RowResult] = []
        self._has_results = asyncio.Event()
        self._wake = asyncio.Event()
        self._paused_until = 0.0  # on the services' clock
        self._learned_at: float | None = None  # of batches; None: there is something to learn
        self._tasks: dict[str, asyncio.Task[None]] = {}  # that open or end a batch

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_store())
            group.create_task(self._commit_results())
            while True:
                self._wake.clear()
                try:
                    await self._turn()
                except Exception as error:  # bugs too: what is in the store must run
                    _log.error("Offline work is delayed: %s", error, exc_info=not isinstance(error, ApiError))
                    await asyncio.sleep(TURN_SECONDS)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds_to_wait()):  # wait_for may swallow a cancellation
                        await self._wake.wait()

    async def close(self) -> None:
        """Rows in the engine are given up, they are pending; results that wait are committed if that is possible."""
        for batch in self._batches.values():
            self._take_back(batch, list(batch.runs), "shutdown")
        tasks = [task for batch in self._batches.values() for _, task in batch.runs.values()]
        await asyncio.gather(*tasks, *self._tasks.values(), return_exceptions=True)
        with contextlib.suppress(ApiError):
            await self._store.finish_rows(self._results)

    # Batches

    async def _watch_store(self) -> None:
        while True:
            await self._store.changed.wait()
            self._store.changed.clear()
            self._learned_at = None
            self._wake.set()

    async def _turn(self) -> None:
        await self._learn_of_batches()
        self._look_at_clock()
        self._take_back_excess()
        await self._feed()
        self._end_batches()
        self._count()

    async def _learn_of_batches(self) -> None:
        now = self._services.clock()
        if self._learned_at is not None and now < self._learned_at + LEARN_SECONDS:
            return
        self._learned_at = now
        for record in await self._store.open_batches():
            batch = self._batches.get(record.id)
            if batch is not None:
                batch.record = record
                if record.status is BatchStatus.CANCELLING:
                    self._stop(batch, BatchStatus.CANCELLED)
            elif _is_ours(record) and record.id not in self._tasks:
                self._begin(record.id, self._open(record))

    def _begin(self, batch_id: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[batch_id] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(batch_id))

    async def _open(self, record: BatchRecord) -> None:
        is_running = record.status is BatchStatus.IN_PROGRESS
        try:
            feed = await self._load_feed(record) if is_running else BatchFeed(self._store, record.id, [])
        except Exception as error:
            _log.warning("Batch %s cannot be begun yet: %s", record.id, error)
            return await asyncio.sleep(TURN_SECONDS)
        self._batches[record.id] = batch = OpenBatch(record, feed)
        self._share.open(record.id, record.tenant, len(feed))
        if not is_running:
            self._stop(batch, BatchStatus.CANCELLED)
        self._learned_at = None  # it may have been cancelled meanwhile
        self._wake.set()
        return None

    async def _load_feed(self, record: BatchRecord) -> BatchFeed:
        in_prefix_order = self._services.config.enable_prefix_order
        return await BatchFeed.load(self._store, record.id, in_prefix_order=in_prefix_order)

    def _look_at_clock(self) -> None:
        now = self._store.now()
        for batch in self._batches.values():
            batch.look_at_clock(now)
            self._share.set_weight(batch.record.id, batch.forecast.weight)
            if now >= batch.record.expires_at:
                self._stop(batch, BatchStatus.EXPIRED)

    def _stop(self, batch: OpenBatch, outcome: BatchStatus) -> None:
        """No more rows; those in the engine are given up."""
        if batch.outcome is None:
            batch.outcome = outcome
            self._share.drop_pending(batch.record.id)
            self._take_back(batch, list(batch.runs), outcome)

    def _end_batches(self) -> None:
        for batch in list(self._batches.values()):
            if batch.is_ending or not batch.is_quiet:
                continue
            if batch.outcome is None and not len(batch.feed):
                batch.outcome = BatchStatus.COMPLETED
            if batch.outcome is not None:
                batch.is_ending = True
                self._begin(batch.record.id, self._end(batch, batch.outcome))

    async def _end(self, batch: OpenBatch, outcome: BatchStatus) -> None:
        try:
            with contextlib.suppress(NotFoundError):
                record = await self._store.finalize(batch.record.id, outcome)
                self.metrics.num_batches_ended[record.status] += 1
        except Exception as error:
            _log.warning("Batch %s cannot be ended yet: %s", batch.record.id, error)
            await asyncio.sleep(TURN_SECONDS)
            batch.is_ending = False
        else:
            del self._batches[batch.record.id]
            self._share.close(batch.record.id)
        self._wake.set()

    # Rows

    async def _feed(self) -> None:
        while self._may_feed() and (batch_id := self._share.next_batch()) is not None:
            batch = self._batches[batch_id]
            row = await batch.feed.take()
            if row is None:  # someone else has ended what was pending
                self._share.drop_pending(batch_id)
            elif batch.outcome is not None:
                batch.feed.put_back(row.index)
            else:
                self._start(batch, row)
                await asyncio.sleep(0)  # a row takes as long as a stream's tokens of many steps: those go between

    def _may_feed(self) -> bool:
        services = self._services
        return (
            services.engine.is_alive
            and not services.is_draining
            and not self.metrics.is_store_blocked
            and services.clock() >= self._paused_until
        )

    def _start(self, batch: OpenBatch, row: RowRecord) -> None:
        is_promoted = batch.dither.next(batch.forecast.promoted_share) and self._num_promoted < self._max_promoted
        # Policy `priority` would put favoured rows before people's requests.
        is_favoured = self._share.is_favoured(batch.record.tenant) and self._services.engine.info.policy != "priority"
        run = RowRun(self._services, batch.record, row, self._budget, is_promoted, is_favoured)
        estimate = batch.estimate(row.body)
        self._share.start(batch.record.id, estimate.num_prompt_tokens, estimate.cost)
        self._num_promoted += is_promoted
        self.metrics.num_rows_promoted += is_promoted
        task = asyncio.create_task(run.result())
        task.add_done_callback(lambda task: self._on_end(batch, run, estimate, task))
        batch.runs[row.index] = run, task

    def _on_end(self, batch: OpenBatch, run: RowRun, estimate: Estimate, task: asyncio.Task[RowResult]) -> None:
        if task.cancelled():  # taken back
            return self._leave(batch, run, estimate, None)
        error = task.exception()
        if error is None:
            return self._leave(batch, run, estimate, task.result())
        if isinstance(error, NotNowError):
            self.metrics.num_rows_returned["engine"] += 1
            self._paused_until = self._services.clock() + PAUSE_SECONDS
            return self._leave(batch, run, estimate, None)
        _log.error("Row %d of %s failed", run.row.index, batch.record.id, exc_info=error)
        return self._leave(batch, run, estimate, run.failure(ServerError("The server failed.")))

    def _leave(self, batch: OpenBatch, run: RowRun, estimate: Estimate, result: RowResult | None) -> None:
        """The row is in the engine no longer. Without a result it is pending."""
        batch_id, index = batch.record.id, run.row.index
        del batch.runs[index]
        self._num_promoted -= run.is_promoted
        if result is None:
            self._share.take_back(batch_id, estimate.num_prompt_tokens, estimate.cost)
            batch.feed.put_back(index)
            if batch.outcome is not None:
                self._share.drop_pending(batch_id)
        else:
            cost = result.usage.input_tokens + result.usage.output_tokens
            self._share.end(batch_id, estimate.num_prompt_tokens, estimate.cost, cost)
            batch.num_uncommitted += 1
            batch.note_end(result.usage.output_tokens)
            self._results.append(result)
            self._has_results.set()
        self._wake.set()

    def _take_back_excess(self) -> None:
        """For tenants who just came: rows that have not begun, the last to be fed first."""
        for tenant in self._share.tenants():
            num_excess = self._share.num_excess(tenant)
            if num_excess:
                for batch, index in list(self._rows_not_begun(tenant))[-num_excess:]:
                    self._take_back(batch, [index], "fairness")

    def _rows_not_begun(self, tenant: str) -> Iterator[tuple[OpenBatch, int]]:
        for batch in self._batches.values():
            if batch.record.tenant == tenant:
                yield from ((batch, index) for index, (run, _) in batch.runs.items() if not run.has_begun)

    def _take_back(self, batch: OpenBatch, indices: list[int], cause: str) -> None:
        for index in indices:
            _, task = batch.runs[index]
            if task.cancel():
                self.metrics.num_rows_returned[cause] += 1

    # Results

    async def _commit_results(self) -> None:
        while True:
            await self._has_results.wait()
            self._has_results.clear()
            results, self._results = self._results, []
            try:
                await self._commit(results)
            except asyncio.CancelledError:
                self._results = results + self._results
                raise
            self._note_committed(results)
            self._wake.set()

    async def _commit(self, results: list[RowResult]) -> None:
        """Repeated while the store is blocked."""
        seconds, longest = RETRY_SECONDS
        while True:
            try:
                return await self._store.finish_rows(results)
            except ApiError as error:
                if not self.metrics.is_store_blocked:
                    _log.error("Offline work waits for its store: %s", error)
                self.metrics.is_store_blocked = True
            await asyncio.sleep(seconds)
            seconds = min(longest, 2 * seconds)

    def _note_committed(self, results: list[RowResult]) -> None:
        self.metrics.is_store_blocked = False
        of_class = self._services.metrics.of_class[RequestClass.OFFLINE]
        for result in results:
            self.metrics.num_rows_ended["failed" if result.is_error else "completed"] += 1
            of_class.num_prompt_tokens += result.usage.input_tokens
            of_class.num_cached_tokens += result.usage.cached_tokens
            of_class.num_output_tokens += result.usage.output_tokens
            self._batches[result.batch_id].num_uncommitted -= 1

    # Time and numbers

    def _seconds_to_wait(self) -> float:
        if not self._batches:
            return LEARN_SECONDS
        if not self._services.engine.is_alive:
            return PAUSE_SECONDS
        pause = self._paused_until - self._services.clock()
        return pause if 0 < pause < TURN_SECONDS else TURN_SECONDS

    def _count(self) -> None:
        metrics, batches = self.metrics, self._batches.values()
        metrics.num_engine_rows = self._share.num_rows
        metrics.num_engine_tokens = self._share.num_tokens
        metrics.num_pending_rows = sum(len(batch.feed) for batch in batches)
        metrics.num_uncommitted_rows = sum(batch.num_uncommitted for batch in batches)
        margins = [(batch.forecast.margin_seconds, batch.record.id) for batch in batches]
        metrics.margin_seconds = {batch_id: margin for margin, batch_id in heapq.nsmallest(MAX_MARGINS, margins)}


def _is_ours(record: BatchRecord) -> bool:
    """Not the validator's, and not being finalised."""
    is_running = record.status is BatchStatus.IN_PROGRESS or record.status is BatchStatus.CANCELLING
    return is_running and record.in_progress_at is not None and record.outcome is None
