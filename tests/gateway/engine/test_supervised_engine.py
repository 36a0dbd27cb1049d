from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fakes.byte_tokenizer import END
from fakes.eventually import eventually
from gateway.base.supervision import Supervisor
from gateway.engine.engine_client import EngineDeadError
from gateway.engine.local_engine import LocalEngine
from gateway.engine.restart_policy import RestartPolicy
from gateway.engine.supervised_engine import SupervisedEngine
from schedcore.api.config import EngineConfig
from schedcore.api.types import EngineRequest, ErrorCode, FinishReason, TokenDelta

ROOT = Path(__file__).resolve().parents[3]
Make = Callable[..., SupervisedEngine]


@pytest.fixture
async def supervised(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """supervised(modules, max_restarts=...): engine i runs module i, the last one from then on."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
    engines: list[SupervisedEngine] = []

    def make(*modules: str, max_restarts: int = 10) -> SupervisedEngine:
        def make_engine(i: int) -> LocalEngine:
            return LocalEngine(EngineConfig(model="fake"), f"fakes.{modules[min(i, len(modules) - 1)]}")

        engines.append(SupervisedEngine(make_engine, RestartPolicy(max_restarts), Supervisor()))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()


def kill(engine: SupervisedEngine) -> None:
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)


async def run(engine: SupervisedEngine, request: EngineRequest) -> list[TokenDelta]:
    deltas = []
    with engine.stream([request]) as stream:
        while arrived := await stream.receive():
            deltas += arrived
    return deltas


async def test_dead_engine_fails_what_was_open_and_returns(supervised: Make) -> None:
    engine = supervised("fake_worker")
    await engine.start()
    first = engine.pid
    with engine.stream([EngineRequest(1, [1, 2], 10**6, min_tokens=10**6)]) as stream:
        await stream.receive()
        kill(engine)
        finals = []
        while arrived := await stream.receive():
            finals += [delta for delta in arrived if delta.finish_reason]
    assert [delta.error.code for delta in finals if delta.error] == [ErrorCode.ENGINE_DEAD]
    with pytest.raises(EngineDeadError, match=r"SIGKILL\. It is being started again") as raised:
        _ = engine.info
    assert raised.value.code == "restarting"
    assert engine.death is None
    await eventually(lambda: engine.is_alive)
    assert engine.num_restarts == 1
    assert engine.pid != first
    deltas = await run(engine, EngineRequest(2, [*b"Hi"], 9, stop_token_ids=[END]))
    assert deltas[-1].finish_reason is FinishReason.STOP


async def test_engine_that_does_not_start_again_is_tried_until_the_limit(supervised: Make) -> None:
    engine = supervised("fake_worker", "no_such_module", max_restarts=2)
    await engine.start()
    kill(engine)
    await eventually(lambda: engine.death is not None)
    assert engine.num_restarts == 2
    with pytest.raises(EngineDeadError) as raised:
        engine.stream([EngineRequest(1, [1], 1)])
    assert raised.value.code == "engine_dead"


async def test_engine_that_never_started_is_not_tried_again(supervised: Make) -> None:
    engine = supervised("no_such_module")
    with pytest.raises(EngineDeadError):
        await engine.start()
    assert engine.death is not None
    assert engine.num_restarts == 0


async def test_closing_ends_a_restart_that_is_under_way(supervised: Make) -> None:
    engine = supervised("fake_worker")
    await engine.start()
    kill(engine)
    await eventually(lambda: not engine.is_alive)
    await engine.close()
    assert not engine.is_alive
    assert engine.death is not None


async def test_the_watch_over_the_engine_is_watched_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
    monkeypatch.setattr("gateway.base.supervision.FIRST_PAUSE_SECONDS", 0.0)

    def make_engine(i: int) -> LocalEngine:
        if i == 1:
            raise RuntimeError("no engine today")
        return LocalEngine(EngineConfig(model="fake"), "fakes.fake_worker")

    supervisor = Supervisor()
    engine = SupervisedEngine(make_engine, RestartPolicy(10), supervisor)
    await engine.start()
    try:
        kill(engine)
        await eventually(lambda: engine.num_restarts == 2 and engine.is_alive)
        assert [(task.name, task.num_restarts, task.cause) for task in supervisor] == [
            ("engine_watch", 1, "RuntimeError")
        ]
        assert "engine_watch ended unexpectedly" in caplog.text
    finally:
        await engine.close()
