"""No callback of an event loop may take long.

Measured in the loop thread's own CPU time, so that waiting for a busy machine does not count. Collections of garbage
and first imports do not count either: they belong to the process, not to a request. On a busy CI machine a small
handler took 51 ms of CPU time once; what these tests are to find, one request that stops everybody, takes a second. So
they fail at four times the gateway's budget of 50 ms. From outside `python -m bench.run.gateway.largest_bodies`
measures it, by the worst wait of /health.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from asyncio import events
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

BUDGET_SECONDS = 4 * 0.05


@dataclass
class LoopCosts:
    """What callbacks cost since the last `clear`, but those of tests and fixtures."""

    longest: float = 0.0  # CPU seconds
    culprit: str = ""
    num_callbacks: int = 0
    _collecting: dict[str, float] = field(default_factory=lambda: {"since": 0.0, "spent": 0.0})

    def clear(self) -> None:
        self.longest, self.culprit, self.num_callbacks = 0.0, "", 0

    def check(self) -> None:
        assert self.longest < BUDGET_SECONDS, f"{self.culprit} held the event loop for {self.longest * 1000:.0f} ms"

    def measure(self, handle: Any) -> None:
        num_modules, spent = len(sys.modules), self._collecting["spent"]
        start = time.thread_time()
        _run(handle)
        cost = time.thread_time() - start - (self._collecting["spent"] - spent)
        self.num_callbacks += 1
        if cost > self.longest and len(sys.modules) == num_modules:
            self.longest, self.culprit = cost, _name(handle)

    def collected(self, phase: str, _: dict[str, int]) -> None:
        """Called by the collector at the start and the stop of each collection."""
        now = time.thread_time()
        if phase == "start":
            self._collecting["since"] = now
        else:
            self._collecting["spent"] += now - self._collecting["since"]


_run = events.Handle._run  # type: ignore[attr-defined]


@contextmanager
def loop_budget() -> Iterator[LoopCosts]:
    """Fails at its end if one callback of any loop took more than BUDGET_SECONDS."""
    costs = LoopCosts()

    def run(handle: Any) -> None:
        if _is_of_tests(handle):
            _run(handle)
        else:
            costs.measure(handle)

    gc.callbacks.append(costs.collected)
    events.Handle._run = run  # type: ignore[attr-defined]
    try:
        yield costs
    finally:
        events.Handle._run = _run  # type: ignore[attr-defined]
        gc.callbacks.remove(costs.collected)
    costs.check()


def _task(handle: Any) -> asyncio.Task[Any] | None:
    owner = getattr(handle._callback, "__self__", None)
    return owner if isinstance(owner, asyncio.Task) else None


def _is_of_tests(handle: Any) -> bool:
    """A test's own task, or that of a fixture."""
    task = _task(handle)
    if task is None:
        return False
    coroutine = task.get_coro()
    file = getattr(getattr(coroutine, "cr_code", None), "co_filename", "")
    name = getattr(coroutine, "__qualname__", "")
    return "test_" in name or "check_history" in name or "pytest_asyncio" in file


def _name(handle: Any) -> str:
    task = _task(handle)
    return repr(handle._callback) if task is None else getattr(task.get_coro(), "__qualname__", repr(task))
