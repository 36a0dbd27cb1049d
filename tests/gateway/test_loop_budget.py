"""The probe that every test of the gateway runs under sees what it should, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import sys
import time

import pytest

from fakes.loop_budget import BUDGET_SECONDS, loop_budget


def work(seconds: float = 2 * BUDGET_SECONDS) -> None:
    """Of this thread's CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def handler() -> None:
    work()


async def in_one_callback(function: object) -> None:
    assert callable(function)
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.call_soon(function)
    loop.call_soon(done.set)
    await done.wait()


def test_a_long_callback_fails_and_is_named() -> None:
    with pytest.raises(AssertionError, match="work"), loop_budget():
        asyncio.run(in_one_callback(work))


def test_a_long_turn_of_a_task_fails_and_is_named() -> None:
    async def run() -> None:
        await asyncio.create_task(handler())

    with pytest.raises(AssertionError, match="handler"), loop_budget():
        asyncio.run(run())


def test_work_of_other_threads_and_waiting_cost_nothing() -> None:
    async def run() -> None:
        await asyncio.to_thread(work)

    with loop_budget() as costs:
        asyncio.run(run())
        assert costs.num_callbacks > 2


def test_collections_and_first_imports_do_not_count() -> None:
    def imports() -> None:
        sys.modules["first_imported_here"] = sys
        work()

    def collects() -> None:
        end = time.thread_time() + 2 * BUDGET_SECONDS
        while time.thread_time() < end:
            gc.collect()

    with loop_budget() as costs:
        try:
            asyncio.run(in_one_callback(imports))
        finally:
            del sys.modules["first_imported_here"]
        asyncio.run(in_one_callback(collects))
        assert costs.num_callbacks > 2
