"""Turns for heavy work: small beside large, tenants alike, nothing for who is gone, and no more than fits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator

import pytest

from gateway.model.work_pool import LARGE_SIZE, WorkPool, in_one_step
from gateway.protocol.errors import QueueFullError


class Gate:
    """Work that waits on its thread until it is told to go on."""

    def __init__(self) -> None:
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def work(self) -> Generator[int, None, str]:
        self.has_begun.set()
        assert self.may_go_on.wait(30)
        yield 1
        return "done"


def noted(done: list[str], name: str, num_steps: int) -> Generator[int, None, None]:
    for _ in range(num_steps):
        done.append(name)
        yield 10


async def test_small_work_does_not_wait_for_large_work() -> None:
    pool, gates = WorkPool(), [Gate() for _ in range(4)]
    large = [asyncio.create_task(pool.run(gate.work(), LARGE_SIZE + 1)) for gate in gates]
    await asyncio.to_thread(gates[0].has_begun.wait, 30)
    assert await pool.run(in_one_step(len, "small"), 5) == 5
    assert not any(task.done() for task in large)
    for gate in gates:
        gate.may_go_on.set()
    assert await asyncio.gather(*large) == ["done"] * 4
    assert pool.num_jobs == 0
    pool.close()


async def test_tenants_take_turns_whatever_each_has_waiting() -> None:
    pool, gate, done = WorkPool(), Gate(), list[str]()
    first = asyncio.create_task(pool.run(gate.work(), LARGE_SIZE + 1, "c"))
    await asyncio.to_thread(gate.has_begun.wait, 30)
    tasks = [asyncio.create_task(pool.run(noted(done, "a", 10), LARGE_SIZE + 1, "a")) for _ in range(5)]
    tasks.append(asyncio.create_task(pool.run(noted(done, "b", 10), LARGE_SIZE + 1, "b")))
    await asyncio.sleep(0)
    gate.may_go_on.set()
    await asyncio.gather(first, *tasks)
    assert 8 <= done[:22].count("b") <= 10
    pool.close()


async def test_what_nobody_waits_for_is_not_begun() -> None:
    pool, gate, done = WorkPool(), Gate(), list[str]()
    first = asyncio.create_task(pool.run(gate.work(), LARGE_SIZE + 1))
    await asyncio.to_thread(gate.has_begun.wait, 30)
    gone = [asyncio.create_task(pool.run(noted(done, "gone", 3), LARGE_SIZE + 1)) for _ in range(3)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    gate.may_go_on.set()
    await first
    await pool.run(in_one_step(len, "x"), LARGE_SIZE + 1)
    assert done == []
    assert (pool.num_dropped, pool.num_jobs) == (3, 0)
    pool.close()


async def test_a_tenants_queue_is_bounded_and_others_are_not_refused() -> None:
    pool, gate = WorkPool(max_jobs=2, max_size=10), Gate()
    waiting = [asyncio.create_task(pool.run(gate.work(), 4, "a")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError):
        await pool.run(in_one_step(len, ""), 1, "a")
    other = asyncio.create_task(pool.run(in_one_step(len, "x"), 100, "b"))  # more than the limit, but its first
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError):
        await pool.run(in_one_step(len, ""), 1, "b")
    gate.may_go_on.set()
    assert await asyncio.gather(*waiting, other) == ["done", "done", 1]
    assert (pool.num_refused, pool.num_jobs) == (2, 0)
    pool.close()


async def test_what_work_raises_is_raised() -> None:
    pool = WorkPool()
    with pytest.raises(ZeroDivisionError):
        await pool.run(in_one_step(lambda: 1 // 0), 1)
    assert pool.num_jobs == 0
    pool.close()
