"""Runs what a study consists of, in a few processes, behind a progress bar."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

Jobs = Mapping[K, Callable[[], R]]


def run_all(jobs: Jobs[K, R], processes: int, title: str) -> dict[K, R]:
    """In the order of `jobs`, whatever the order in which they end. Jobs must be picklable if processes > 1."""
    if processes <= 1 or len(jobs) <= 1:
        with progress_bar() as progress:
            task = progress.add_task(title, total=len(jobs))
            results = {}
            for key, job in jobs.items():
                results[key] = job()
                progress.advance(task)
            return results
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
        keys = {pool.submit(job): key for key, job in jobs.items()}  # forks here, before the bar starts its thread
        found = {}
        try:
            with progress_bar() as progress:
                task = progress.add_task(title, total=len(jobs))
                for future in as_completed(keys):
                    found[keys[future]] = future.result()
                    progress.advance(task)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {key: found[key] for key in jobs}


def progress_bar() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True)
