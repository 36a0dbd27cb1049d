"""Tasks that last as long as the gateway. Each has an owner here, and comes back when it ends unexpectedly.

A task that nobody awaits ends silently, and what it did is done no more until a restart. Here an end is logged and
counted, `/health` names it, and the work begins again: after a quarter of a second, then ever later.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeAlias

FIRST_PAUSE_SECONDS = 0.25  # before the first restart; doubles with every end in a row
MAX_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0  # a task that has run so long has recovered: its ends are forgiven
CANCEL_SECONDS = 0.5  # until work that has swallowed a cancellation, as wait_for may, is cancelled again
MAX_ENDS = 5  # in a row; after more of them a task cannot be kept up

Work: TypeAlias = Callable[[], Awaitable[None]]

_log = logging.getLogger("hocket.gateway")


class TaskState(enum.StrEnum):
    STEADY = "steady"
    RESTARTED = "restarted"  # it has ended within the last minute, and runs again or soon will
    FAILING = "failing"  # it ends whenever it is started


class SupervisedTask:
    """Runs `work` until `stop()`. Work that returns has ended as unexpectedly as work that raises."""

    def __init__(
        self, name: str, work: Work, clock: Callable[[], float], pause: Callable[[float], Awaitable[None]]
    ) -> None:
        self.name = name
        self.num_restarts = 0
        self.cause = ""  # of the last end: the kinds of its exceptions, whose texts may hold what clients have sent
        self._work = work
        self._clock = clock
        self._pause = pause
        self._num_ends = 0  # in a row
        self._is_stopping = False
        self._started_at: float | None = None  # None: it waits to be started again
        self._task = asyncio.create_task(self._run())

    @property
    def state(self) -> TaskState:
        if self._num_ends == 0 or self._is_steady:
            return TaskState.STEADY
        return TaskState.RESTARTED if self._num_ends <= MAX_ENDS else TaskState.FAILING

    @property
    def is_running(self) -> bool:
        return self._started_at is not None

    async def stop(self) -> None:
        """Returns when the work has ended. Idempotent."""
        self._is_stopping = True
        while not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CANCEL_SECONDS)

    @property
    def _is_steady(self) -> bool:
        return self._started_at is not None and self._clock() - self._started_at >= STEADY_SECONDS

    async def _run(self) -> None:
        while True:
            self._started_at = self._clock()
            error = await self._work_once()
            if self._is_stopping:
                return
            self._note_end(error)
            await self._pause(min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (self._num_ends - 1)))
            self.num_restarts += 1

    async def _work_once(self) -> BaseException | None:
        try:
            await self._work()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return error  # of something that the work waited for
        except Exception as error:
            return error
        return None

    def _note_end(self, error: BaseException | None) -> None:
        self._num_ends = 1 if self._is_steady else self._num_ends + 1
        self._started_at = None
        self.cause = "it returned" if error is None else ", ".join(dict.fromkeys(_kinds(error)))
        _log.error("The task %s ended unexpectedly (%s); it is started again", self.name, self.cause, exc_info=error)


class Supervisor:
    """Belongs to one event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._tasks: list[SupervisedTask] = []

    def __iter__(self) -> Iterator[SupervisedTask]:
        return iter(list(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)

    def in_state(self, state: TaskState) -> list[SupervisedTask]:
        return [task for task in self._tasks if task.state is state]

    @contextlib.asynccontextmanager
    async def running(self, name: str, work: Work) -> AsyncIterator[SupervisedTask]:
        """Calls `work` now, and again whenever it ends, until the block is left."""
        task = SupervisedTask(name, work, self._clock, self._pause)
        self._tasks.append(task)
        try:
            yield task
        finally:
            await task.stop()
            self._tasks.remove(task)


def _kinds(error: BaseException) -> Iterator[str]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _kinds(part)
    else:
        yield type(error).__name__
