"""Runs the rows of open batches on the engine, and nothing gets lost on the way.

A turn: learn of batches that began or were cancelled, look at the clock (windows that end, batches that must hurry),
take back what exceeds a tenant's share, start rows, end the batches that are done. A turn follows when a row ends, when
the store changes, or after a second.

A row is pending in the store until its result is committed. Everything before that may vanish at any time: the engine
dies, the gateway is killed, the row is taken back; it then runs again. Results that cannot be committed (the disk is
full, the database away) wait in memory, nothing new starts meanwhile, and the commit is repeated until it succeeds.
What is wrong with one row or one batch alone stops nobody else (result_commit.py).

Where several gateways share the store, each runs the rows that it leases (store/leases.py). Whoever runs out of rows
looks for those that others have left, until none is pending; then whoever comes first ends the batch.

Where the engine is several nodes, each has a window of rows (nodes/node_windows.py) and stretches of each batch's order
(nodes/stretches.py). A node that has nothing gets what others have not begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Collection, Coroutine, Iterator, Sequence
from typing import Any

from gateway.engine.engine_nodes import EngineNodes
from gateway.generation.serving import Serving
from gateway.offline.database.backoff import Backoff
from gateway.offline.database.failures import is_passing
from gateway.offline.nodes.node_windows import NodeWindows, Window
from gateway.offline.running.fair_share import FairShare, LookAhead
from gateway.offline.running.open_batch import TROUBLE_SECONDS, Estimate, OpenBatch
from gateway.offline.running.request_budget import RequestBudget
from gateway.offline.running.result_commit import Landing, ResultCommit
from gateway.offline.running.row_execution import NotNowError, RowRun
from gateway.offline.running.row_queue import RowQueue
from gateway.offline.store.leases import HeldElsewhereError
from gateway.offline.store.records import BatchRecord, BatchStatus, RowRecord, RowResult
from gateway.offline.store.store import OfflineStore
from gateway.protocol.errors import ApiError, NotFoundError, ServerError
from schedcore.api.types import RequestClass

TURN_SECONDS = 1.0
LEARN_SECONDS = 5.0  # between two looks at the store if it says nothing
PAUSE_SECONDS = 0.25  # after the engine refused a row or was away
REQUESTS_PER_ROW = 2  # in the engine, on average; with more, rows wait for each other

_log = logging.getLogger("hocket.offline")


class OfflineRunner:
    """One per store. `run()` until it is cancelled, then `close()`."""

    def __init__(self, serving: Serving, store: OfflineStore, look_ahead: LookAhead, max_promoted: int) -> None:
        """max_promoted: rows that may be in the engine as online requests at a time."""
        self.metrics = serving.metrics.offline
        self._serving = serving
        self._store = store
        self._nodes = serving.engine if isinstance(serving.engine, EngineNodes) else None
        self._windows = NodeWindows(look_ahead.max_rows, look_ahead.max_tokens)
        self._look_ahead = look_ahead  # of each engine
        self._share = FairShare(look_ahead)
        self._budget = RequestBudget(REQUESTS_PER_ROW * look_ahead.max_rows)
        self._max_promoted = max_promoted
        self._num_promoted = 0
        self._batches: dict[str, OpenBatch] = {}
        self._commit = ResultCommit(store, self.metrics, serving.clock, self._note_committed)
        self._short_of_space: frozenset[str] = frozenset()  # tenants whose results would not fit
        self._unreadable: dict[str, tuple[Backoff, float]] = {}  # batches that cannot be begun, and when to try again
        self._wake = asyncio.Event()
        self._paused_until = 0.0  # on the gateway's clock
        self._learned_at: float | None = None  # of batches; None: there is something to learn
        self._tasks: dict[str, asyncio.Task[None]] = {}  # that open, look for more of, or end a batch
        self._leases = store.leases
        self._runner = 0 if store.leases is None else store.leases.runner  # that rows were leased for

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_store())
            group.create_task(self._commit.run())
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
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*tasks, *self._tasks.values(), return_exceptions=True)
        await self._commit.close()

    # Nodes

    def _tend_windows(self) -> None:
        if self._nodes is None:
            return
        now = self._serving.clock()
        stats = self._nodes.node_stats()
        if self._windows.look(stats, now):
            self._deal_again(stats)
        if self._windows.has_idle(now) and not any(len(batch.queue) for batch in self._batches.values()):
            self._take_back_half()

    def _deal_again(self, nodes: Collection[str]) -> None:
        """Nodes have come or gone: what those that are gone have not begun is dealt again, or was given to nobody."""
        names = self._windows.names
        look_ahead = self._look_ahead.times(max(1, len(names)))
        self._share.set_look_ahead(look_ahead)
        self._budget.max_requests = REQUESTS_PER_ROW * look_ahead.max_rows
        for batch in self._batches.values():
            batch.queue.set_nodes(names)
            not_begun = [(index, run.node) for index, (run, _) in batch.runs.items() if not run.has_begun]
            left = [index for index, node in not_begun if (bool(names) if node is None else node not in nodes)]
            self._take_back(batch, left, "node")

    def _take_back_half(self) -> None:
        """Of the rows that a node has not begun, where there are the most: for one that has none."""
        waiting: dict[str | None, list[tuple[OpenBatch, int]]] = {}
        for batch in self._batches.values():
            for index, (run, _) in batch.runs.items():
                if not run.has_begun:
                    waiting.setdefault(run.node, []).append((batch, index))
        most = max(waiting.values(), key=len, default=[])
        for batch, index in most[(len(most) + 1) // 2 :]:
            self._take_back(batch, [index], "node")

    # Batches

    async def _watch_store(self) -> None:
        while True:
            await self._store.changed.wait()
            self._store.changed.clear()
            self._learned_at = None
            self._wake.set()

    async def _turn(self) -> None:
        await self._poll_batches()
        await self._tend_leases()
        self._tend_windows()
        self._refresh_forecasts()
        self._pause_some()
        self._share.note_flex(self._serving.flex.num_open, self._serving.flex.take_costs())
        self._take_back_excess()
        await self._start_rows()
        self._end_batches()
        self._count()

    async def _poll_batches(self) -> None:
        now = self._serving.clock()
        if self._learned_at is not None and now < self._learned_at + LEARN_SECONDS:
            return
        self._learned_at = now
        records = await self._store.open_batches()
        self._short_of_space = await self._store.short_of_space(record.tenant for record in records)
        self._unreadable = {r.id: self._unreadable[r.id] for r in records if r.id in self._unreadable}
        self._leave_some(records)
        for record in records:
            batch = self._batches.get(record.id)
            if batch is not None:
                batch.record = record
                if record.status is BatchStatus.CANCELLING:
                    self._stop(batch, BatchStatus.CANCELLED)
            elif _is_ours(record) and record.id not in self._tasks and now >= self._unreadable_until(record.id):
                self._begin(record.id, self._open(record))

    def _leave_some(self, records: Sequence[BatchRecord]) -> None:
        """Batches that other gateways end, or have ended."""
        if self._leases is None:
            return
        going_on = {record.id for record in records if record.outcome is None}
        for batch_id, batch in self._batches.items():
            batch.num_sharing = self._leases.num_runners
            if batch_id not in going_on and not batch.is_ending:
                batch.has_left = True
                self._stop(batch, BatchStatus.CANCELLED)

    async def _tend_leases(self) -> None:
        """Rows that others were given are theirs; rows that cannot run here at present are anybody's."""
        if self._leases is None:
            return
        if self._runner != self._leases.runner:
            self._runner = self._leases.runner
            for batch in self._batches.values():
                batch.queue.unread()
                self._take_back(batch, list(batch.runs), "lease")
        if self._serving.is_draining or not self._serving.engine.is_alive:
            for batch in list(self._batches.values()):
                if batch.holds_rows and batch.is_quiet:
                    batch.queue.unread()
                    await self._store.give_back_rows(batch.record.id)
                    batch.holds_rows = False

    def _unreadable_until(self, batch_id: str) -> float:
        return self._unreadable[batch_id][1] if batch_id in self._unreadable else 0.0

    def _begin(self, batch_id: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[batch_id] = asyncio.create_task(work)
        task.add_done_callback(lambda task: self._forget(batch_id, task))

    def _forget(self, batch_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(batch_id) is task:  # the next one of that batch may have begun already
            del self._tasks[batch_id]

    async def _open(self, record: BatchRecord) -> None:
        is_running = record.status is BatchStatus.IN_PROGRESS
        try:
            queue = await self._load_queue(record) if is_running else RowQueue(self._store, record.id, [])
        except Exception as error:
            _log.warning("Batch %s cannot be begun yet: %s", record.id, error)
            backoff, _ = self._unreadable.get(record.id, (Backoff(*TROUBLE_SECONDS), 0.0))
            self._unreadable[record.id] = backoff, self._serving.clock() + backoff.pause()
            return
        self._unreadable.pop(record.id, None)
        queue.set_nodes(self._windows.names)
        self._batches[record.id] = batch = OpenBatch(record, queue)
        self._share.open(record.id, record.tenant, len(queue))
        self._pause_if_needed(batch)  # a turn may be starting rows at this moment
        if not is_running:
            self._stop(batch, BatchStatus.CANCELLED)
        self._learned_at = None  # it may have been cancelled meanwhile
        self._wake.set()

    async def _load_queue(self, record: BatchRecord) -> RowQueue:
        in_prefix_order, for_nodes = self._serving.config.enable_prefix_order, self._nodes is not None
        return await RowQueue.load(self._store, record.id, in_prefix_order=in_prefix_order, for_nodes=for_nodes)

    def _refresh_forecasts(self) -> None:
        now = self._store.now()
        for batch in self._batches.values():
            batch.refresh_forecast(now)
            self._share.set_weight(batch.record.id, batch.forecast.weight)
            if now >= batch.record.expires_at:
                self._stop(batch, BatchStatus.EXPIRED)

    def _stop(self, batch: OpenBatch, outcome: BatchStatus) -> None:
        """No more rows; those in the engine are given up."""
        if batch.outcome is None:
            batch.outcome = outcome
            self._share.drop_pending(batch.record.id)
            self._take_back(batch, list(batch.runs), outcome)
        batch.num_uncommitted -= self._commit.drop_stuck(batch.record.id)

    def _end_batches(self) -> None:
        for batch in list(self._batches.values()):
            if batch.is_ending or not batch.is_quiet or self._serving.clock() < batch.retry_at:
                continue
            if batch.has_left:
                self._forget_batch(batch)
                continue
            if batch.outcome is None and not len(batch.queue):
                if self._leases is not None and not batch.is_done:
                    self._look_for_more(batch)
                    continue
                batch.outcome = BatchStatus.COMPLETED
            if batch.outcome is not None:
                batch.is_ending = True
                self._begin(batch.record.id, self._end(batch, batch.outcome))

    def _look_for_more(self, batch: OpenBatch) -> None:
        if batch.record.id not in self._tasks and self._serving.clock() >= batch.look_at:
            self._begin(batch.record.id, self._refill(batch))

    async def _refill(self, batch: OpenBatch) -> None:
        """Rows that another gateway has left behind; or the news that there is none to wait for."""
        try:
            batch.is_done = not await self._store.num_pending(batch.record.id)
            queue = await self._load_queue(batch.record)
        except Exception as error:
            _log.warning("The rows of %s cannot be looked for: %s", batch.record.id, error)
            batch.delay(self._serving.clock())
            return
        if batch.outcome is None:
            queue.set_nodes(self._windows.names)
            batch.queue = queue
            self._share.set_pending(batch.record.id, len(queue))
        if batch.is_done or len(queue):
            self._wake.set()
        else:
            batch.look_at = self._serving.clock() + TURN_SECONDS

    def _forget_batch(self, batch: OpenBatch) -> None:
        del self._batches[batch.record.id]
        self._share.close(batch.record.id)

    async def _end(self, batch: OpenBatch, outcome: BatchStatus) -> None:
        try:
            with contextlib.suppress(NotFoundError):
                record = await self._store.finalize(batch.record.id, outcome)
                self.metrics.num_batches_ended[record.status] += 1
        except HeldElsewhereError:
            batch.has_left, batch.is_ending = True, False
        except Exception as error:
            _log.warning("Batch %s cannot be ended yet: %s", batch.record.id, error)
            batch.delay(self._serving.clock())
            batch.is_ending = False
        else:
            self._forget_batch(batch)
        self._wake.set()

    # Rows

    async def _start_rows(self) -> None:
        while self._may_start() and (window := self._windows.next(self._serving.clock())) is not None:
            if (batch_id := self._share.next_batch()) is None:
                return
            batch = self._batches[batch_id]
            row, is_known = await self._take(batch, window)
            batch.holds_rows = True
            if not is_known:
                continue
            if row is None:  # someone else has ended what was pending
                self._share.drop_pending(batch_id)
            elif batch.outcome is not None:
                batch.queue.put_back(row.index, window.name)
            else:
                self._start(batch, row, window)
                await asyncio.sleep(0)  # a row takes as long as a stream's tokens of many steps: those go between

    async def _take(self, batch: OpenBatch, window: Window) -> tuple[RowRecord | None, bool]:
        """The next row; whether that could be read. If not, the batch is let be for a while: others go on."""
        try:
            return await batch.queue.take(window.name), True
        except Exception as error:
            if isinstance(error, ApiError) and is_passing(error):
                raise
            _log.error("The rows of %s cannot be read: %s", batch.record.id, error)
            batch.delay(self._serving.clock())
            self._share.pause(batch.record.id, True)
            return None, False

    def _pause_some(self) -> None:
        for batch in self._batches.values():
            self._pause_if_needed(batch)

    def _pause_if_needed(self, batch: OpenBatch) -> None:
        is_short = batch.record.tenant in self._short_of_space
        self._share.pause(batch.record.id, is_short or self._is_delayed(batch, self._serving.clock()))

    def _is_delayed(self, batch: OpenBatch, now: float) -> bool:
        return now < batch.retry_at or self._commit.num_stuck(batch.record.id) > 0

    def _may_start(self) -> bool:
        serving = self._serving
        return (
            serving.engine.is_alive
            and not serving.is_draining
            and not self.metrics.is_store_blocked
            and serving.clock() >= self._paused_until
        )

    def _start(self, batch: OpenBatch, row: RowRecord, window: Window) -> None:
        is_promoted = batch.dither.next(batch.forecast.promoted_share) and self._num_promoted < self._max_promoted
        # Policy `priority` would put favoured rows before people's requests.
        is_favoured = self._share.is_favoured(batch.record.tenant) and self._serving.engine.info.policy != "priority"
        run = RowRun(self._serving, batch.record, row, self._budget, is_promoted, is_favoured)
        if window.name is not None:
            run.nodes, run.node = self._nodes, window.name
        estimate = batch.estimate(row.body)
        self._share.start(batch.record.id, estimate.num_prompt_tokens, estimate.cost)
        window.start(estimate.num_prompt_tokens)
        self._num_promoted += is_promoted
        self.metrics.num_rows_promoted += is_promoted
        task = asyncio.create_task(run.result())
        task.add_done_callback(lambda task: self._on_end(batch, run, estimate, window, task))
        batch.runs[row.index] = run, task

    def _on_end(
        self, batch: OpenBatch, run: RowRun, estimate: Estimate, window: Window, task: asyncio.Task[RowResult]
    ) -> None:
        has_ended = not task.cancelled() and task.exception() is None
        window.leave(estimate.num_prompt_tokens, has_ended=has_ended)
        if task.cancelled():  # taken back
            return self._leave(batch, run, estimate, None)
        error = task.exception()
        if error is None:
            return self._leave(batch, run, estimate, task.result())
        if isinstance(error, NotNowError):
            self.metrics.num_rows_returned["engine"] += 1
            self._pause(window)
            return self._leave(batch, run, estimate, None)
        _log.error("Row %d of %s failed", run.row.index, batch.record.id, exc_info=error)
        return self._leave(batch, run, estimate, run.failure(ServerError("The server failed.")))

    def _pause(self, window: Window) -> None:
        """It refused a row: other nodes may take it."""
        window.paused_until = self._serving.clock() + PAUSE_SECONDS
        if window.name is None:
            self._paused_until = window.paused_until

    def _leave(self, batch: OpenBatch, run: RowRun, estimate: Estimate, result: RowResult | None) -> None:
        """The row is in the engine no longer. Without a result it is pending."""
        batch_id, index = batch.record.id, run.row.index
        del batch.runs[index]
        self._num_promoted -= run.is_promoted
        if result is None:
            self._share.take_back(batch_id, estimate.num_prompt_tokens, estimate.cost)
            batch.queue.put_back(index, run.node)
            if batch.outcome is not None:
                self._share.drop_pending(batch_id)
        else:
            cost = result.usage.input_tokens + result.usage.output_tokens
            self._share.end(batch_id, estimate.num_prompt_tokens, estimate.cost, cost)
            batch.queue.end(index)
            batch.num_uncommitted += 1
            batch.note_end(result.usage.output_tokens)
            self._commit.add(Landing(result, run.failure, run.figures))
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

    def _note_committed(self, landings: Sequence[Landing]) -> None:
        of_class = self._serving.metrics.of_class[RequestClass.OFFLINE]
        for landing in landings:
            result = landing.result
            self.metrics.num_rows_ended["failed" if result.is_error else "completed"] += 1
            of_class.num_prompt_tokens += result.usage.input_tokens
            of_class.num_cached_tokens += result.usage.cached_tokens
            of_class.num_output_tokens += result.usage.output_tokens
            if landing.figures is not None:
                landing.figures.record(of_class)
            batch = self._batches[result.batch_id]
            batch.num_uncommitted -= 1
            batch.trouble.reset()
        self._wake.set()

    # Time and numbers

    def _seconds_to_wait(self) -> float:
        if not self._batches:
            return LEARN_SECONDS
        if self._windows.names or not self._serving.engine.is_alive:
            return PAUSE_SECONDS
        pause = self._paused_until - self._serving.clock()
        return pause if 0 < pause < TURN_SECONDS else TURN_SECONDS

    def _count(self) -> None:
        metrics, batches = self.metrics, self._batches.values()
        metrics.clock_jump_seconds = self._store.now.jump_seconds
        if self._leases is not None:
            metrics.num_results_refused, metrics.num_gateways = self._leases.num_refused, self._leases.num_runners
        metrics.num_engine_rows = self._share.num_rows
        metrics.num_engine_tokens = self._share.num_tokens
        metrics.num_pending_rows = sum(len(batch.queue) for batch in batches)
        metrics.num_uncommitted_rows = sum(batch.num_uncommitted for batch in batches)
        margins = [batch.forecast.margin_seconds for batch in batches]
        metrics.num_open_batches = len(margins)
        metrics.num_late_batches = sum(margin < 0 for margin in margins)
        metrics.least_margin_seconds = min(margins, default=math.inf)
        now = self._serving.clock()
        metrics.num_delayed_batches = sum(self._is_delayed(batch, now) for batch in batches) + len(self._unreadable)
        metrics.num_batches_short_of_space = sum(batch.record.tenant in self._short_of_space for batch in batches)


def _is_ours(record: BatchRecord) -> bool:
    """Not the validator's, and not being finalised."""
    is_running = record.status is BatchStatus.IN_PROGRESS or record.status is BatchStatus.CANCELLING
    return is_running and record.in_progress_at is not None and record.outcome is None
