"""Several engines side by side: sessions take turns, and each stays with its engine, where its history is cached."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from schedcore.simulation.simulator import Progress
from schedcore.simulation.workloads.workload import NO_REQUEST, Workload

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Traffic:
    """A workload at recorded times, and whose requests they are."""

    workload: Workload
    session: Int64  # per request, counted by the sessions' first arrivals

    @classmethod
    def of(cls, workload: Workload, session_numbers: Int64) -> Traffic:
        """session_numbers: any, equal for the requests of one session. The first arrival becomes time zero.

        Raises ValueError if a request follows another: the engine that it belongs to would be unknown.
        """
        if np.any(workload.follows != NO_REQUEST):
            raise ValueError("traffic has times of its own: no request may follow another")
        order = np.argsort(workload.arrival_s, kind="stable")
        _, first, session = np.unique(session_numbers[order], return_index=True, return_inverse=True)
        rank = np.empty(first.size, np.int64)
        rank[np.argsort(first)] = np.arange(first.size)
        sessions = np.empty(order.size, np.int64)
        sessions[order] = rank[session]
        start = float(workload.arrival_s.min(initial=np.inf)) if len(workload) else 0.0
        return cls(replace(workload, arrival_s=workload.arrival_s - start), sessions)

    def __len__(self) -> int:
        return len(self.workload)

    @property
    def duration_s(self) -> float:
        return float(self.workload.arrival_s.max(initial=0.0))

    def between(self, start_s: float, end_s: float) -> Traffic:
        """What arrives in [start_s, end_s), at the same distances from each other; start_s becomes time zero."""
        arrivals = self.workload.arrival_s
        keep = (arrivals >= start_s) & (arrivals < end_s)
        chosen = self.workload.select(keep)
        return Traffic(replace(chosen, arrival_s=chosen.arrival_s - start_s), self.session[keep])

    def share(self, engine: int, num_engines: int) -> Workload:
        return self.workload.select(self.session % num_engines == engine)


def run_engines(
    num_engines: int,
    run: Callable[[int, Progress], T],
    on_progress: Progress | None = None,
    num_threads: int | None = None,
) -> list[T]:
    """run(engine, progress) for every engine, side by side: the simulation itself runs without Python's lock.

    on_progress gets the sums over engines. If one fails, or Ctrl-C comes, the others end at their next report.
    """
    stop = threading.Event()
    lock = threading.Lock()
    done: dict[int, tuple[int, int]] = {}

    def report(engine: int, so_far: int, total: int) -> None:
        if stop.is_set():
            raise StoppedError
        with lock:
            done[engine] = so_far, total
            known = sum(total for _, total in done.values())
            if on_progress is not None:
                on_progress(sum(so_far for so_far, _ in done.values()), known * num_engines // len(done))

    def run_one(engine: int) -> T:
        try:
            return run(engine, lambda so_far, total: report(engine, so_far, total))
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(min(num_engines, num_threads or os.cpu_count() or 1)) as pool:
        futures = [pool.submit(run_one, engine) for engine in range(num_engines)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()  # for those that still run, if any
            pool.shutdown(cancel_futures=True)
    failures = [error for future in futures if not future.cancelled() and (error := future.exception())]
    for error in failures:
        if not isinstance(error, StoppedError):
            raise error
    return [future.result() for future in futures]


class StoppedError(Exception):
    """Another engine's run has failed, or nobody waits for this one any more."""
