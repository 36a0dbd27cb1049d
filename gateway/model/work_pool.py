"""Heavy work beside the event loop: a few threads, turns for tenants, and nothing done for who is gone.

Work comes as a generator: each step is one turn on a thread, and what it yields is what the step cost (characters, or
as many of something that costs as much). Small work has a lane of its own, so that it never waits for large work,
whoever sent it; in a lane the tenant goes first that has had least, and of a tenant's work that which has had least.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gateway.protocol.errors import QueueFullError

T = TypeVar("T")
Work = Generator[int, None, T]

LARGE_SIZE = 65_536  # work of more characters goes by the other lane
_RETRY_SECONDS = 1


@dataclass(slots=True, eq=False)
class _Job:
    work: Work[Any]
    size: int
    result: asyncio.Future[Any]
    cost: int = 0  # so far


@dataclass(slots=True, eq=False)
class _Tenant:
    cost: int = 0  # of all its work, since it last had none
    waiting: list[tuple[int, int, _Job]] = field(default_factory=list)  # a heap: what has had least, then the oldest


class _Lane:
    def __init__(self) -> None:
        self.tenants: dict[tuple[bool, str], _Tenant] = {}
        self._numbers = itertools.count()

    def push(self, key: tuple[bool, str], job: _Job) -> None:
        tenant = self.tenants.get(key)
        if tenant is None:  # whoever was away has no advantage over those who were not
            tenant = self.tenants[key] = _Tenant(min((other.cost for other in self.tenants.values()), default=0))
        heapq.heappush(tenant.waiting, (job.cost, next(self._numbers), job))

    def pop(self) -> tuple[tuple[bool, str], _Job] | None:
        for key in sorted(self.tenants, key=lambda key: (key[0], self.tenants[key].cost)):
            waiting = self.tenants[key].waiting
            while waiting:
                job = heapq.heappop(waiting)[2]
                if not job.result.done():  # nobody waits for it any more
                    return key, job
        return None

    @property
    def is_waiting(self) -> bool:
        return any(not entry[2].result.done() for tenant in self.tenants.values() for entry in tenant.waiting)


class WorkPool:
    """Belongs to one event loop at a time. `max_jobs` and `max_size` bound what each tenant has in it."""

    def __init__(self, num_threads: int = 2, max_jobs: int = 2048, max_size: int = 64 * 2**20) -> None:
        """REQUIRES: num_threads >= 2."""
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenize")
        self._num_threads, self._max_jobs, self._max_size = num_threads, max_jobs, max_size
        self._small, self._large = _Lane(), _Lane()
        self._num_running = {id(self._small): 0, id(self._large): 0}
        self._held: dict[str, list[int]] = {}  # tenant -> [jobs, size]
        self.num_refused = 0
        self.num_dropped = 0  # before they were done: their clients went away

    @property
    def num_jobs(self) -> int:
        return sum(jobs for jobs, _ in self._held.values())

    async def run(self, work: Work[T], size: int, tenant: str = "", *, is_background: bool = False) -> T:
        """What the generator returns, or raises. Raises QueueFullError. Cancelling drops what has not begun."""
        held = self._held.setdefault(tenant, [0, 0])
        if held[0] and (held[0] >= self._max_jobs or held[1] + size > self._max_size):
            self.num_refused += 1
            raise QueueFullError("Too much text waits to be tokenised: try again.", retry_after_seconds=_RETRY_SECONDS)
        held[0] += 1
        held[1] += size
        job = _Job(work, size, asyncio.get_running_loop().create_future())
        lane = self._large if size > LARGE_SIZE else self._small
        lane.push((is_background, tenant), job)
        self._start_some()
        try:
            result: T = await job.result
            return result
        finally:
            self.num_dropped += job.result.cancelled()
            held[0] -= 1
            held[1] -= size
            if not held[0]:
                self._held.pop(tenant, None)

    def close(self) -> None:
        """Waits for nothing; a step that runs is the last of its work."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start_some(self) -> None:
        while (lane := self._next_lane()) is not None and (found := lane.pop()) is not None:
            self._num_running[id(lane)] += 1
            try:
                step = self._threads.submit(next, found[1].work)
            except Exception as error:  # the system has no thread for us
                self._num_running[id(lane)] -= 1
                found[1].result.set_exception(error)
                self._forget_served(lane)
            else:
                step.add_done_callback(self._telling(asyncio.get_running_loop(), lane, *found))

    def _next_lane(self) -> _Lane | None:
        """Large work never has all threads, small work only while no large work waits for its first."""
        num_small, num_large = self._num_running[id(self._small)], self._num_running[id(self._large)]
        if num_small + num_large >= self._num_threads:
            return None
        large_may = num_large < self._num_threads - 1 and self._large.is_waiting
        if self._small.is_waiting and not (large_may and num_large == 0 and num_small >= self._num_threads - 1):
            return self._small
        return self._large if large_may else None

    def _telling(
        self, loop: asyncio.AbstractEventLoop, lane: _Lane, key: tuple[bool, str], job: _Job
    ) -> Callable[[Future[int]], None]:
        def tell(step: Future[int]) -> None:
            if not step.cancelled() and not loop.is_closed():
                loop.call_soon_threadsafe(self._stepped, lane, key, job, step)

        return tell

    def _stepped(self, lane: _Lane, key: tuple[bool, str], job: _Job, step: Future[int]) -> None:
        self._num_running[id(lane)] -= 1
        error = step.exception()
        if error is None:
            cost = max(1, step.result())
            job.cost += cost
            lane.tenants[key].cost += cost
            if not job.result.done():
                lane.push(key, job)
        elif not job.result.done():
            if isinstance(error, StopIteration):
                job.result.set_result(error.value)
            else:
                job.result.set_exception(error)
        self._forget_served(lane)
        self._start_some()

    def _forget_served(self, lane: _Lane) -> None:
        if not lane.is_waiting and not any(self._num_running.values()):
            lane.tenants.clear()


def in_one_step(function: Callable[..., T], *arguments: Any) -> Work[T]:
    """Work that cannot be cut."""
    yield from _nothing()
    return function(*arguments)


def at_once(work: Work[T]) -> T:
    """All steps, here and now."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def _nothing() -> Iterator[int]:
    return iter(())
