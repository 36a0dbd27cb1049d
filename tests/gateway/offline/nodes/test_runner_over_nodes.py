"""Batches from a real store over fake engines that are nodes: who gets which rows, and each row ends once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine
from fakes.offline_rows import begun_batch
from gateway.engine.delta_stream import DeltaStream
from gateway.engine.engine_client import EngineDeadError
from gateway.offline.running.fair_share import LookAhead
from gateway.offline.running.runner import OfflineRunner
from gateway.offline.store.records import BatchRecord
from gateway.offline.store.store import OfflineStore
from schedcore.api.types import EngineRequest, EngineStats

LOOK_AHEAD = LookAhead(max_rows=8, max_tokens=10_000, max_lag_tokens=10_000)


class FakeNodes(FakeEngine):
    """The nodes' engines step by hand. What is routed, and not sent to a node, is in `requests`."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.engines = {name: FakeEngine(is_manual=True) for name in names}

    def come(self, name: str) -> None:
        self.engines[name] = FakeEngine(is_manual=True)

    def kill(self, name: str) -> None:
        self.engines.pop(name).die("It was killed.")

    def step_nodes(self, *names: str) -> None:
        for name in names or tuple(self.engines):
            self.engines[name].step()

    def node_stats(self) -> dict[str, EngineStats | None]:
        return {name: engine.stats() for name, engine in self.engines.items()}

    def stream_at(self, node: str, requests: Sequence[EngineRequest]) -> DeltaStream:
        if node not in self.engines:
            raise EngineDeadError("It is gone.")
        return self.engines[node].stream(requests)


@asynccontextmanager
async def running(
    engine: FakeNodes, store: OfflineStore, make_services: Callable[..., Any], look_ahead: LookAhead = LOOK_AHEAD
) -> AsyncIterator[OfflineRunner]:
    runner = OfflineRunner(make_services(engine).serving, store, look_ahead, 4)
    task = asyncio.create_task(runner.run())
    yield runner
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await runner.close()


async def run_to_end(store: OfflineStore, batch: BatchRecord, engine: FakeNodes) -> None:
    async with asyncio.timeout(60):
        while (await store.batch("", batch.id)).is_open:
            engine.step_nodes()
            await asyncio.sleep(0.001)


async def check_each_row_once(store: OfflineStore, batch: BatchRecord, number: int) -> None:
    record = await store.batch("", batch.id)
    assert (record.num_completed, record.num_failed) == (number, 0)
    assert record.output_file_id is not None
    found = [json.loads(line) for line in store.path(record.output_file_id).read_bytes().splitlines()]
    assert [line["custom_id"] for line in found] == [f"r{i}" for i in range(number)]
    assert [line["response"]["body"]["choices"][0]["text"] for line in found] == [f"prompt {i}" for i in range(number)]


def numbers(engine: FakeEngine) -> list[int]:
    """Of the rows that it was given."""
    return [int(bytes(request.prompt_token_ids).decode().split()[1]) for request in engine.requests]


async def test_one_node_is_left_to_the_engine_that_routes(
    store: OfflineStore, make_services: Callable[..., Any]
) -> None:
    engine = FakeNodes("a")
    batch = await begun_batch(store, 30)
    async with running(engine, store, make_services):
        await run_to_end(store, batch, engine)
    assert len(engine.requests) == 30
    assert not engine.engines["a"].requests
    await check_each_row_once(store, batch, 30)


async def test_each_node_has_a_window_and_a_stretch_of_its_own(
    store: OfflineStore, make_services: Callable[..., Any]
) -> None:
    engine = FakeNodes("a", "b", "c")
    batch = await begun_batch(store, 90)
    async with running(engine, store, make_services):
        await eventually(lambda: all(node.num_open == LOOK_AHEAD.max_rows for node in engine.engines.values()))
        first = {name: numbers(node) for name, node in engine.engines.items()}
        assert {min(rows) // 30 for rows in first.values()} == {0, 1, 2}
        for rows in first.values():
            assert rows == list(range(rows[0], rows[0] + LOOK_AHEAD.max_rows))
        await run_to_end(store, batch, engine)
    assert not engine.requests
    await check_each_row_once(store, batch, 90)


async def test_the_faster_one_has_more(store: OfflineStore, make_services: Callable[..., Any]) -> None:
    engine = FakeNodes("slow", "fast")
    batch = await begun_batch(store, 120)
    async with running(engine, store, make_services):
        for turn in range(100_000):
            engine.step_nodes("fast") if turn % 4 else engine.step_nodes()
            await asyncio.sleep(0.001)
            if not (await store.batch("", batch.id)).is_open:
                break
    await check_each_row_once(store, batch, 120)
    assert len(numbers(engine.engines["fast"])) > 2 * len(numbers(engine.engines["slow"]))


async def test_rows_of_a_node_that_dies_are_run_by_others_and_one_that_comes_takes_part(
    store: OfflineStore, make_services: Callable[..., Any]
) -> None:
    engine = FakeNodes("a", "b", "c")
    batch = await begun_batch(store, 200)
    async with running(engine, store, make_services) as runner:
        await eventually(lambda: all(node.num_open == LOOK_AHEAD.max_rows for node in engine.engines.values()))
        engine.kill("b")
        await eventually(lambda: sum(runner.metrics.num_rows_returned.values()) >= LOOK_AHEAD.max_rows)
        engine.come("d")
        await eventually(lambda: engine.engines["d"].num_open > 0)
        await run_to_end(store, batch, engine)
    await check_each_row_once(store, batch, 200)


async def test_a_node_that_comes_at_the_end_gets_what_another_has_not_begun(
    store: OfflineStore, make_services: Callable[..., Any]
) -> None:
    engine = FakeNodes("a", "b")
    batch = await begun_batch(store, 16)
    async with running(engine, store, make_services) as runner:
        await eventually(lambda: sum(node.num_open for node in engine.engines.values()) == 16)
        engine.come("c")
        await eventually(lambda: engine.engines["c"].num_open > 0)
        assert runner.metrics.num_rows_returned["node"] > 0
        await run_to_end(store, batch, engine)
    await check_each_row_once(store, batch, 16)


async def test_all_but_one_go_and_come_back(store: OfflineStore, make_services: Callable[..., Any]) -> None:
    engine = FakeNodes("a", "b")
    batch = await begun_batch(store, 100)
    async with running(engine, store, make_services):
        await eventually(lambda: all(node.num_open for node in engine.engines.values()))
        engine.kill("b")
        async with asyncio.timeout(20):
            while len(engine.requests) < 20:  # now the engine routes
                engine.step_nodes()
                await asyncio.sleep(0.001)
        engine.come("b")
        await run_to_end(store, batch, engine)
    await check_each_row_once(store, batch, 100)
