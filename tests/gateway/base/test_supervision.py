"""Background tasks come back when they end, and say so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine
from fakes.manual_clock import ManualClock
from gateway.base.supervision import MAX_ENDS, MAX_PAUSE_SECONDS, STEADY_SECONDS, SupervisedTask, Supervisor, TaskState
from gateway.config.config import GatewayConfig
from gateway.offline.checking.validation import Validator
from gateway.offline.running import service
from gateway.offline.running.runner import OfflineRunner
from gateway.offline.running.webhooks import Courier
from gateway.services import SERVICES, Services


class Work:
    """Each call waits until the test says how it ends."""

    def __init__(self) -> None:
        self.num_calls = 0
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> None:
        self.num_calls += 1
        self._end = asyncio.get_running_loop().create_future()
        await self._end

    async def end(self, error: BaseException | None = None) -> None:
        """Returns when it has been called again."""
        num_before = self.num_calls
        if error is None:
            self._end.set_result(None)
        elif isinstance(error, asyncio.CancelledError):
            self._end.cancel()
        else:
            self._end.set_exception(error)
        await eventually(lambda: self.num_calls > num_before)


class Fixture:
    def __init__(self, supervisor: Supervisor, clock: ManualClock, pauses: list[float], work: Work) -> None:
        self.supervisor, self.clock, self.pauses, self.work = supervisor, clock, pauses, work

    @property
    def task(self) -> SupervisedTask:
        return next(iter(self.supervisor))


@pytest.fixture
async def at_work() -> AsyncIterator[Fixture]:
    """Work that runs under a supervisor, whose pauses are noted and not waited for."""
    clock, pauses, work = ManualClock(), list[float](), Work()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    supervisor = Supervisor(clock, pause)
    async with supervisor.running("work", work):
        await eventually(lambda: work.num_calls)
        yield Fixture(supervisor, clock, pauses, work)
    assert not len(supervisor)


ENDS = [
    (RuntimeError("with a client's text"), "RuntimeError"),
    (None, "it returned"),
    (asyncio.CancelledError(), "CancelledError"),
    (ExceptionGroup("", [ValueError(), ExceptionGroup("", [KeyError(), ValueError()])]), "ValueError, KeyError"),
]


@pytest.mark.parametrize(("error", "cause"), ENDS)
async def test_work_that_ends_begins_again(at_work: Fixture, error: BaseException | None, cause: str) -> None:
    assert at_work.task.state is TaskState.STEADY
    await at_work.work.end(error)
    assert (at_work.task.num_restarts, at_work.task.cause) == (1, cause)
    assert at_work.task.state is TaskState.RESTARTED
    assert at_work.task.is_running


async def test_pauses_grow_and_are_bounded(at_work: Fixture) -> None:
    for _ in range(10):
        await at_work.work.end(RuntimeError())
    assert at_work.pauses[:4] == [0.25, 0.5, 1.0, 2.0]
    assert at_work.pauses[-1] == MAX_PAUSE_SECONDS


async def test_work_that_ends_again_and_again_is_failing_until_it_is_steady(at_work: Fixture) -> None:
    for _ in range(MAX_ENDS):
        await at_work.work.end(RuntimeError())
    assert at_work.task.state is TaskState.RESTARTED
    await at_work.work.end(RuntimeError())
    assert at_work.supervisor.in_state(TaskState.FAILING) == [at_work.task]
    at_work.clock.advance(STEADY_SECONDS)
    assert at_work.task.state is TaskState.STEADY
    await at_work.work.end(RuntimeError())
    assert at_work.task.state is TaskState.RESTARTED
    assert at_work.pauses[-1] == 0.25


async def test_stopping_does_not_wait_for_a_pause() -> None:
    async def fail() -> None:
        raise RuntimeError

    async def pause(seconds: float) -> None:
        await asyncio.Event().wait()

    supervisor = Supervisor(pause=pause)
    async with supervisor.running("work", fail) as task:
        await eventually(lambda: task.cause)
        assert not task.is_running


@pytest.mark.parametrize("returns", [True, False])
async def test_work_that_swallows_a_cancellation_is_stopped_all_the_same(
    returns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.base.supervision.CANCEL_SECONDS", 0.0)
    num_calls = 0

    async def swallow() -> None:
        nonlocal num_calls
        num_calls += 1
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if not returns:
            await asyncio.Event().wait()

    async with asyncio.timeout(10), Supervisor().running("work", swallow) as task:
        await eventually(lambda: num_calls)
    assert (num_calls, task.num_restarts) == (1, 0)


async def test_health_names_what_was_restarted_and_what_fails(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.base.supervision.FIRST_PAUSE_SECONDS", 0.0)
    client = await serve(FakeEngine())
    supervisor, work = client.app[SERVICES].supervisor, Work()

    async def health() -> tuple[int, dict[str, Any]]:
        response = await client.get("/health")
        return response.status, await response.json()

    async with supervisor.running("housework", work):
        await eventually(lambda: work.num_calls)
        assert (await health())[1]["status"] == "ok"
        await work.end(RuntimeError("secret"))
        status, body = await health()
        assert (status, body["status"]) == (200, "degraded")
        assert "housework ended unexpectedly (RuntimeError)" in body["reason"]
        assert "secret" not in body["reason"]
        text = await (await client.get("/metrics")).text()
        assert 'hocket_task_restarts_total{task="housework"} 1.0' in text
        assert 'hocket_task_up{task="housework"} 1.0' in text
        for _ in range(MAX_ENDS):
            await work.end(RuntimeError())
        assert (await health())[0] == 503
        assert (await health())[1]["status"] == "task_failing"


BACKGROUND = [
    ("batch_validation", Validator, "run"),
    ("offline_upkeep", service, "_maintain"),
    ("webhook_delivery", Courier, "run"),
    ("offline_rows", OfflineRunner, "run"),
]


@pytest.mark.parametrize(("name", "owner", "method"), BACKGROUND)
async def test_what_runs_beside_requests_is_supervised(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, owner: Any, method: str
) -> None:
    """The first call fails; the second is the real one."""
    monkeypatch.setattr("gateway.base.supervision.FIRST_PAUSE_SECONDS", 0.0)
    original = getattr(owner, method)
    calls: list[object] = []

    async def fail_once(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise ZeroDivisionError
        await original(*arguments)

    monkeypatch.setattr(owner, method, fail_once)
    client = await serve(FakeEngine(), data_dir=str(tmp_path))
    await eventually(lambda: len(calls) == 2)
    body = await (await client.get("/health")).json()
    assert body["status"] == "degraded"
    assert f"{name} ended unexpectedly (ZeroDivisionError)" in body["reason"]


def test_services_take_a_supervisor_that_has_no_task_yet() -> None:
    """It is falsy then."""
    supervisor, given = Supervisor(), SimpleNamespace(tokenizer=SimpleNamespace(pool=None))
    assert Services(GatewayConfig(), FakeEngine(), given, supervisor=supervisor).supervisor is supervisor
