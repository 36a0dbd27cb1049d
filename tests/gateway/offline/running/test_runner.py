"""Batches from a real store over a fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from fakes.byte_tokenizer import END
from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine, saying
from fakes.offline_rows import begun_batch
from gateway.engine.classify import FAVOURED
from gateway.offline.running.fair_share import LookAhead
from gateway.offline.running.row_execution import PROMOTED_TARGETS
from gateway.offline.running.runner import OfflineRunner
from gateway.offline.store.records import BatchRecord, BatchStatus
from gateway.offline.store.store import OfflineStore
from gateway.protocol.errors import StorageFullError
from schedcore.api.types import EngineError, ErrorCode, RequestClass, Targets

LOOK_AHEAD = LookAhead(max_rows=8, max_tokens=10_000, max_lag_tokens=10_000)
type_of_run = Callable[..., Awaitable[OfflineRunner]]


@pytest.fixture
async def run(store: OfflineStore, make_services: Callable[..., Any]) -> AsyncIterator[type_of_run]:
    """run(engine) -> a runner at work on the store."""
    running: list[tuple[OfflineRunner, asyncio.Task[None]]] = []

    async def make(engine: FakeEngine, look_ahead: LookAhead = LOOK_AHEAD, max_promoted: int = 4) -> OfflineRunner:
        runner = OfflineRunner(make_services(engine).serving, store, look_ahead, max_promoted)
        running.append((runner, asyncio.create_task(runner.run())))
        return runner

    yield make
    for runner, task in running:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runner.close()


async def ended(store: OfflineStore, batch: BatchRecord) -> BatchRecord:
    async with asyncio.timeout(20):
        while True:
            if not (record := await store.batch(batch.tenant, batch.id)).is_open:
                return record
            await asyncio.sleep(0.01)


def lines(store: OfflineStore, file_id: str | None) -> list[dict[str, Any]]:
    return [] if file_id is None else [json.loads(line) for line in store.path(file_id).read_bytes().splitlines()]


async def test_rows_run_offline_and_their_results_come_in_order(store: OfflineStore, run: type_of_run) -> None:
    engine = FakeEngine(saying("Hi"))
    batch = await begun_batch(store, 30)
    runner = await run(engine)
    record = await ended(store, batch)
    assert record.status is BatchStatus.COMPLETED
    assert record.num_completed == 30
    assert record.usage.output_tokens == 30 * 3
    output = lines(store, record.output_file_id)
    assert [line["custom_id"] for line in output] == [f"r{i}" for i in range(30)]
    response = output[0]["response"]
    assert response["status_code"] == 200
    assert response["body"]["object"] == "text_completion"
    assert response["body"]["choices"][0]["text"] == "Hi"
    assert response["body"]["choices"][0]["finish_reason"] == "stop"
    assert output[0]["error"] is None
    assert {request.request_class for request in engine.requests} == {RequestClass.OFFLINE}
    assert runner.metrics.num_rows_ended["completed"] == 30


async def test_rows_count_as_requests_once_they_are_committed(store: OfflineStore, run: type_of_run) -> None:
    batch = await begun_batch(store, 4, extra={"n": 2})
    refused = await begun_batch(store, 1, extra={"max_tokens": 10**6})
    runner = await run(FakeEngine(saying("Hi")))
    await ended(store, batch)
    await ended(store, refused)
    counted = runner._serving.metrics.of_class[RequestClass.OFFLINE]
    assert counted.num_finished == {"stop": 8}
    assert (sum(counted.e2e.counts), sum(counted.prompt_lengths.counts)) == (8, 4)
    assert (sum(counted.output_lengths.counts), counted.output_lengths.sum) == (8, 24)
    assert counted.num_output_tokens == 24


async def test_no_more_rows_than_the_look_ahead_are_in_the_engine(store: OfflineStore, run: type_of_run) -> None:
    engine = FakeEngine(is_manual=True)
    batch = await begun_batch(store, 30)
    await run(engine)
    most = 0
    while (await store.batch("", batch.id)).is_open:
        most = max(most, engine.num_open)
        engine.step()
        await asyncio.sleep(0.001)
    assert most == LOOK_AHEAD.max_rows
    assert len(engine.requests) == 30


async def test_rows_survive_an_engine_that_dies(store: OfflineStore, run: type_of_run) -> None:
    engine = FakeEngine(is_manual=True)
    batch = await begun_batch(store, 20)
    runner = await run(engine)
    await eventually(lambda: engine.num_open == LOOK_AHEAD.max_rows)
    engine.die("It was killed.")
    await eventually(lambda: runner.metrics.num_rows_returned["engine"] == LOOK_AHEAD.max_rows)
    engine.revive()
    while (await store.batch("", batch.id)).is_open:
        engine.step()
        await asyncio.sleep(0.001)
    record = await store.batch("", batch.id)
    assert (record.num_completed, record.num_failed) == (20, 0)
    assert len(lines(store, record.output_file_id)) == 20


async def test_full_queue_is_waited_out(store: OfflineStore, run: type_of_run) -> None:
    engine = FakeEngine()
    engine.refusal = EngineError(ErrorCode.QUEUE_FULL, "The queue is full.")
    batch = await begun_batch(store, 5)
    runner = await run(engine)
    await eventually(lambda: runner.metrics.num_rows_returned["engine"] >= 5)
    assert (await store.batch("", batch.id)).num_failed == 0
    engine.refusal = None
    assert (await ended(store, batch)).num_completed == 5


async def test_row_that_the_engine_refuses_becomes_an_error_line(store: OfflineStore, run: type_of_run) -> None:
    engine = FakeEngine()
    engine.refusal = EngineError(ErrorCode.TOO_LONG, "It is too long.")
    batch = await begun_batch(store, 2)
    await run(engine)
    record = await ended(store, batch)
    assert (record.num_completed, record.num_failed) == (0, 2)
    assert record.output_file_id is None
    error = lines(store, record.error_file_id)[0]
    assert error["custom_id"] == "r0"
    assert error["response"]["status_code"] == 400
    assert error["response"]["body"]["error"]["code"] == "context_length_exceeded"


async def test_cancelled_batch_gives_its_rows_up(store: OfflineStore, run: type_of_run) -> None:
    engine = FakeEngine(is_manual=True)
    batch = await begun_batch(store, 20)
    await run(engine)
    await eventually(lambda: engine.num_open == LOOK_AHEAD.max_rows)
    for _ in range(20):
        engine.step()
    await eventually(lambda: len(engine.requests) > LOOK_AHEAD.max_rows)
    await store.cancel_batch("", batch.id)
    record = await ended(store, batch)
    assert record.status is BatchStatus.CANCELLED
    assert record.num_completed == LOOK_AHEAD.max_rows
    assert engine.num_open == 0
    assert len(lines(store, record.output_file_id)) == LOOK_AHEAD.max_rows


async def test_batch_whose_window_ends_expires(
    open_store: Callable[..., Awaitable[OfflineStore]], make_services: Callable[..., Any]
) -> None:
    time = [1000.0]
    store = await open_store(now=lambda: time[0])
    engine = FakeEngine(is_manual=True)
    batch = await begun_batch(store, 20, window_seconds=100)
    runner = OfflineRunner(make_services(engine).serving, store, LOOK_AHEAD, 4)
    running = asyncio.create_task(runner.run())
    await eventually(lambda: engine.num_open == LOOK_AHEAD.max_rows)
    time[0] += 101.0
    record = await ended(store, batch)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await runner.close()
    assert record.status is BatchStatus.EXPIRED
    errors = lines(store, record.error_file_id)
    assert [line["error"]["code"] for line in errors] == ["batch_expired"] * 20
    assert engine.num_open == 0


async def test_late_batch_goes_to_the_engine_as_online_work(
    open_store: Callable[..., Awaitable[OfflineStore]], make_services: Callable[..., Any]
) -> None:
    time = [1000.0]
    store = await open_store(now=lambda: time[0])
    engine = FakeEngine(is_manual=True)
    await begun_batch(store, 50, window_seconds=1000, extra={"ttft_target_ms": 5, "tpot_target_ms": 5})
    time[0] += 999.0
    runner = OfflineRunner(make_services(engine).serving, store, LOOK_AHEAD, 3)
    running = asyncio.create_task(runner.run())
    await eventually(lambda: engine.num_open == LOOK_AHEAD.max_rows)
    classes = [request.request_class for request in engine.requests]
    assert classes.count(RequestClass.ONLINE) == 3
    for request in engine.requests:  # whatever the rows ask for
        is_promoted = request.request_class is RequestClass.ONLINE
        assert request.targets == (PROMOTED_TARGETS if is_promoted else Targets())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await runner.close()


async def test_full_disk_is_waited_out(store: OfflineStore, run: type_of_run, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, is_full, num_refused = store.finish_rows, True, 0

    async def finish_or_not(results: Any) -> None:
        nonlocal num_refused
        if is_full:
            num_refused += 1
            raise StorageFullError("The disk is full.")
        await finish(results)

    monkeypatch.setattr(store, "finish_rows", finish_or_not)
    engine = FakeEngine()
    batch = await begun_batch(store, 40)
    runner = await run(engine)
    await eventually(lambda: num_refused >= 2)
    assert runner.metrics.is_store_blocked
    num_requests = len(engine.requests)
    assert num_requests < 40
    is_full = False
    assert (await ended(store, batch)).num_completed == 40
    assert not runner.metrics.is_store_blocked
    assert len(engine.requests) == 40


async def test_tenant_who_comes_later_does_not_wait(store: OfflineStore, run: type_of_run) -> None:
    engine = FakeEngine(is_manual=True)
    await begun_batch(store, 200, tenant="large")
    runner = await run(engine)
    await eventually(lambda: engine.num_open == LOOK_AHEAD.max_rows)
    await begun_batch(store, 4, tenant="small")
    await eventually(lambda: sum(request.tenant == "small" for request in engine.requests) == 4)
    assert runner.metrics.num_rows_returned["fairness"] > 0
    assert all((request.priority == FAVOURED) == (request.tenant == "small") for request in engine.requests)
    assert engine.num_open <= LOOK_AHEAD.max_rows


async def test_stop_strings_end_a_row_early(store: OfflineStore, run: type_of_run) -> None:
    engine = FakeEngine(lambda request: [*b"one two three", END])
    batch = await begun_batch(store, 2, extra={"stop": " two", "max_tokens": 100, "n": 2})
    await run(engine)
    record = await ended(store, batch)
    for line in lines(store, record.output_file_id):
        assert [choice["text"] for choice in line["response"]["body"]["choices"]] == ["one", "one"]


async def test_results_equal_those_of_the_online_route(
    store: OfflineStore, run: type_of_run, serve: Callable[..., Awaitable[Any]]
) -> None:
    extra: dict[str, object] = {"n": 2, "logprobs": 2, "echo": True, "return_token_ids": True, "max_tokens": 20}
    batch = await begun_batch(store, 1, extra=extra)
    await run(FakeEngine())
    record = await ended(store, batch)
    row = lines(store, record.output_file_id)[0]["response"]["body"]
    client = await serve(FakeEngine())
    online = await (await client.post("/v1/completions", json={"prompt": "prompt 0"} | extra)).json()
    for body in (row, online):
        del body["id"], body["created"]
    assert row == online


async def test_rows_with_many_choices_leave_room_in_the_engines_queue(store: OfflineStore, run: type_of_run) -> None:
    engine = FakeEngine(is_manual=True)
    batch = await begun_batch(store, 12, extra={"n": 5, "max_tokens": 3})
    await run(engine)
    await eventually(lambda: engine.num_open == 15)
    most = 0
    while (await store.batch("", batch.id)).is_open:
        most = max(most, engine.num_open)
        engine.step()
        await asyncio.sleep(0.001)
    assert most == 15  # three rows; the fourth would exceed twice the look-ahead's eight
    assert (await store.batch("", batch.id)).num_completed == 12
