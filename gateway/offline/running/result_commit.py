"""Results on their way into the store: many in one commit, and one that cannot be stored fails alone.

    the disk is full, the database away    all wait, and the commit is repeated until it succeeds
    the store refuses the group            it is halved until whoever is refused stands alone: that row fails, and its
                                           error says why
    not even that can be stored            the row is stuck: it is handed in again, with growing pauses, and its batch
                                           waits; everybody else's results go on

A database that answers others is not away: what is refused then is refused for what it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.metrics.offline_metrics import OfflineMetrics
from gateway.offline.database.backoff import Backoff
from gateway.offline.database.failures import is_passing
from gateway.offline.running.row_figures import RowFigures
from gateway.offline.store.records import RowResult
from gateway.offline.store.store import OfflineStore
from gateway.protocol.errors import ApiError, QuotaError, ServerError, StorageFullError

BLOCKED_SECONDS = (0.25, 30.0)  # first and longest wait for a store that is blocked
STUCK_SECONDS = (1.0, 300.0)  # for a row that is stuck
_ATTEMPTS = 3  # before it is asked whether the database is away, or only this group refused

_log = logging.getLogger("hocket.offline")


@dataclass(slots=True, eq=False)
class Landing:
    """A row that has ended, and whose result is not on the disk."""

    result: RowResult
    failed: Callable[[ApiError], RowResult]  # the same row, had it failed
    figures: RowFigures | None = None  # None: it has no answer

    def fail(self, error: ApiError) -> None:
        self.result, self.figures = self.failed(error), None


@dataclass(slots=True, eq=False)
class _Stuck:
    landing: Landing
    due_at: float  # on the clock
    backoff: Backoff = field(default_factory=lambda: Backoff(*STUCK_SECONDS))


class ResultCommit:
    """`run()` until it is cancelled, then `close()`."""

    def __init__(
        self,
        store: OfflineStore,
        metrics: OfflineMetrics,
        clock: Callable[[], float],
        on_committed: Callable[[Sequence[Landing]], None],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._on_committed = on_committed
        self._waiting: list[Landing] = []
        self._stuck: list[_Stuck] = []
        self._has_waiting = asyncio.Event()

    def add(self, landing: Landing) -> None:
        self._waiting.append(landing)
        self._has_waiting.set()

    def num_stuck(self, batch_id: str) -> int:
        return sum(stuck.landing.result.batch_id == batch_id for stuck in self._stuck)

    def drop_stuck(self, batch_id: str) -> int:
        """Their batch ends without them: they are pending in the store. How many there were."""
        num_before = len(self._stuck)
        self._stuck = [stuck for stuck in self._stuck if stuck.landing.result.batch_id != batch_id]
        self._count_stuck()
        return num_before - len(self._stuck)

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_to_wait()):
                    await self._has_waiting.wait()
            await self._commit_waiting()
            await self._try_stuck()

    async def close(self) -> None:
        """One more attempt; what cannot be committed is pending in the store, and runs again."""
        landings = self._waiting + [stuck.landing for stuck in self._stuck]
        error = await self._attempt(landings)
        if error is not None and not is_passing(error):
            for landing in landings:
                await self._attempt([landing])

    async def _commit_waiting(self) -> None:
        self._has_waiting.clear()
        landings, self._waiting = self._waiting, []
        groups = [landings]
        try:
            while groups:
                refused = await self._commit(groups[-1])
                groups.pop()
                groups += refused
        except BaseException:  # cancelled, or a bug: nothing is lost
            self._waiting = [landing for group in groups for landing in group] + self._waiting
            self._has_waiting.set()
            raise

    async def _commit(self, group: list[Landing]) -> list[list[Landing]]:
        """What is yet to be committed, in smaller groups."""
        error = await self._wait_for_store(group)
        if error is None:
            self._landed(group)
        elif len(group) > 1:
            middle = len(group) // 2
            return [group[:middle], group[middle:]]
        else:
            await self._fail(group[0], error)
        return []

    async def _wait_for_store(self, group: list[Landing]) -> Exception | None:
        """Until the group is committed, or refused for what it is; then the reason."""
        backoff = Backoff(*BLOCKED_SECONDS)
        num_attempts = 0
        while (error := await self._attempt(group)) is not None:
            num_attempts += 1
            if not is_passing(error):
                break
            if num_attempts >= _ATTEMPTS and not isinstance(error, StorageFullError) and await self._store.answers():
                break
            if not self._metrics.is_store_blocked:
                _log.error("Offline work waits for its store: %s", error)
            self._metrics.is_store_blocked = True
            await asyncio.sleep(backoff.pause())
        self._metrics.is_store_blocked = False
        return error

    async def _attempt(self, group: Sequence[Landing]) -> Exception | None:
        try:
            await self._store.finish_rows([landing.result for landing in group])
        except Exception as error:
            return error
        return None

    async def _fail(self, landing: Landing, error: Exception) -> None:
        """The row has no result but its error line; if that is refused too, it is stuck."""
        result = landing.result
        _log.error("The result of row %d of %s cannot be stored: %s", result.index, result.batch_id, error)
        substitute = Landing(result, landing.failed)
        substitute.fail(_unstorable(error))
        if (error_again := await self._wait_for_store([substitute])) is None:
            return self._landed([substitute])
        _log.error("Row %d of %s is stuck: %s", result.index, result.batch_id, error_again)
        stuck = _Stuck(substitute, self._clock())
        stuck.due_at += stuck.backoff.pause()
        self._stuck.append(stuck)
        self._count_stuck()
        return None

    async def _try_stuck(self) -> None:
        for stuck in [stuck for stuck in self._stuck if stuck.due_at <= self._clock()]:
            error = await self._attempt([stuck.landing])
            if stuck not in self._stuck:  # dropped meanwhile
                continue
            if error is None:
                self._stuck.remove(stuck)
                self._count_stuck()
                self._landed([stuck.landing])
            else:
                stuck.due_at = self._clock() + stuck.backoff.pause()

    def _landed(self, group: Sequence[Landing]) -> None:
        self._metrics.is_store_blocked = False
        self._on_committed(group)

    def _count_stuck(self) -> None:
        self._metrics.num_stuck_rows = len(self._stuck)

    def _seconds_to_wait(self) -> float | None:
        if not self._stuck:
            return None
        return max(0.0, min(stuck.due_at for stuck in self._stuck) - self._clock())


def _unstorable(error: Exception) -> ApiError:
    if isinstance(error, QuotaError):  # short: room for this is kept with every row
        return QuotaError(
            "The answer would exceed what you may store: delete files, and run it again.", code=error.code
        )
    if isinstance(error, ApiError):
        return ServerError(f"The row's result could not be stored. {error.message}", code=error.code)
    return ServerError("The row's result could not be stored: the server's log says why.")
