"""The engine process: started, spoken to, watched, stopped. A fake worker speaks the real protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from fakes.byte_tokenizer import END
from fakes.eventually import eventually
from fakes.fake_engine import FakeSteps
from gateway.engine.engine_client import EngineDeadError
from gateway.engine.heartbeat import TURNS
from gateway.engine.local_engine import LocalEngine
from schedcore.api import wire
from schedcore.api.config import EngineConfig
from schedcore.api.types import Advisory, AdvisoryEvent, EngineRequest, ErrorCode, FinishReason, TokenDelta

ROOT = Path(__file__).resolve().parents[3]


def request(request_id: int, text: bytes = b"Hello", max_tokens: int = 100, **fields: object) -> EngineRequest:
    return EngineRequest(request_id, [*text], max_tokens, stop_token_ids=[END], **fields)  # type: ignore[arg-type]


@pytest.fixture
async def make_engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[object]:
    """make_engine(mode) -> a LocalEngine over a fake worker, closed at the end."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
    engines: list[LocalEngine] = []

    def make(mode: str = "", module: str = "fakes.fake_worker", timeout_seconds: float = 60.0) -> LocalEngine:
        monkeypatch.setenv("FAKE_WORKER_MODE", mode)
        engines.append(LocalEngine(EngineConfig(model="fake"), module, timeout_seconds))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def receive_all(engine: LocalEngine, *requests: EngineRequest) -> list[TokenDelta]:
    deltas = []
    with engine.stream(requests) as stream:
        while arrived := await stream.receive():
            deltas += arrived
    return deltas


async def test_the_engine_has_a_process_group_of_its_own_in_the_gateways_session(make_engine: object) -> None:
    """Ctrl-C passes it by; and cores are shared among processes, not among sessions."""
    engine: LocalEngine = make_engine()  # type: ignore[operator]
    await engine.start()
    assert engine.pid is not None
    assert os.getpgid(engine.pid) == engine.pid
    assert os.getsid(engine.pid) == os.getsid(0)


async def test_engine_starts_answers_and_stops(make_engine: object) -> None:
    engine: LocalEngine = make_engine()  # type: ignore[operator]
    assert not engine.is_alive
    await engine.start()
    assert engine.is_alive
    assert engine.info.model == "fake"
    deltas = await receive_all(engine, request(1), request(2, max_tokens=3))
    for request_id, ids, reason in ((1, [*b"Hello", END], FinishReason.STOP), (2, [*b"Hel"], FinishReason.LENGTH)):
        own = [delta for delta in deltas if delta.request_id == request_id]
        assert [i for delta in own for i in delta.token_ids] == ids
        assert [delta.finish_reason for delta in own if delta.finish_reason] == [reason]
    await eventually(lambda: engine.stats() is not None)
    pid = engine.pid
    assert pid is not None
    await engine.close()
    assert not psutil.pid_exists(pid)
    assert not engine.is_alive


async def test_leaving_a_stream_aborts_in_the_engine(make_engine: object) -> None:
    engine: LocalEngine = make_engine()  # type: ignore[operator]
    await engine.start()
    with engine.stream([request(1, max_tokens=10**6, min_tokens=10**6)]) as stream:
        await stream.receive()
    assert await receive_all(engine, request(2))  # stats follow steps
    await eventually(lambda: (stats := engine.stats()) is not None and stats.num_finished[FinishReason.ABORT] == 1)


async def test_killed_engine_fails_every_open_request(make_engine: object) -> None:
    engine: LocalEngine = make_engine()  # type: ignore[operator]
    await engine.start()
    endless = [request(i, max_tokens=10**6, min_tokens=10**6) for i in range(5)]
    with engine.stream(endless[:3]) as first, engine.stream(endless[3:]) as second:
        await first.receive()
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        finals = []
        for stream in (first, second):
            while arrived := await stream.receive():
                finals += [delta for delta in arrived if delta.finish_reason]
    assert sorted(delta.request_id for delta in finals) == [0, 1, 2, 3, 4]
    assert all(delta.error and delta.error.code is ErrorCode.ENGINE_DEAD for delta in finals)
    assert engine.death == "The engine was killed by SIGKILL."
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        engine.stream([request(9)])
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        _ = engine.info
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        await engine.advise(Advisory("session", AdvisoryEvent.TYPING))


async def test_an_advisory_is_answered(make_engine: object) -> None:
    engine: LocalEngine = make_engine()  # type: ignore[operator]
    await engine.start()
    await receive_all(engine, request(1, session_id="mine"))
    answers = await asyncio.gather(
        *(engine.advise(Advisory(name, AdvisoryEvent.TYPING, request_id=i)) for i, name in enumerate(("mine", "yours")))
    )
    assert [answer.is_known for answer in answers] == [True, False]


async def test_a_reset_of_the_cache_is_answered(make_engine: object) -> None:
    engine: LocalEngine = make_engine()  # type: ignore[operator]
    await engine.start()
    assert [answer.num_blocks for answer in await asyncio.gather(*map(engine.reset_prefix_cache, (1, 2)))] == [3, 3]


async def test_an_advisory_does_not_outlive_the_engine(make_engine: object) -> None:
    engine: LocalEngine = make_engine("deaf")  # type: ignore[operator]
    await engine.start()
    asking = asyncio.create_task(engine.advise(Advisory("session", AdvisoryEvent.TYPING, request_id=1)))
    await asyncio.sleep(0)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        await asking


async def test_an_engine_that_does_not_answer_an_advisory_is_not_waited_for(
    make_engine: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.engine.engine_line.ADVISE_SECONDS", 0.0)
    engine: LocalEngine = make_engine("deaf")  # type: ignore[operator]
    await engine.start()
    with pytest.raises(TimeoutError):
        await engine.advise(Advisory("session", AdvisoryEvent.TYPING, request_id=1))


@pytest.mark.parametrize(("mode", "reason"), [("exit", "exited with status 3"), ("fatal", "There is no such device")])
async def test_engine_that_cannot_start_says_why(make_engine: object, mode: str, reason: str) -> None:
    engine: LocalEngine = make_engine(mode)  # type: ignore[operator]
    with pytest.raises(EngineDeadError, match=reason):
        await engine.start()
    assert engine.death is not None
    assert reason in engine.death


async def test_engine_module_that_does_not_exist(make_engine: object) -> None:
    engine: LocalEngine = make_engine(module="fakes.no_such_worker")  # type: ignore[operator]
    with pytest.raises(EngineDeadError, match="exited with status 1"):
        await engine.start()


async def test_engine_that_talks_nonsense_is_dead(make_engine: object) -> None:
    engine: LocalEngine = make_engine("garbage")  # type: ignore[operator]
    with contextlib.suppress(EngineDeadError):  # the nonsense may arrive with the greeting
        await engine.start()
    await eventually(lambda: engine.death is not None)
    assert "no message" in (engine.death or "")
    await eventually(lambda: engine.pid is not None and not is_running(engine.pid))


async def test_an_engine_that_hangs_is_killed_and_its_requests_fail(make_engine: object) -> None:
    engine: LocalEngine = make_engine(timeout_seconds=0.5)  # type: ignore[operator]
    await engine.start()
    with engine.stream([request(1, max_tokens=10**6, min_tokens=10**6)]) as stream:
        await stream.receive()
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        deltas: list[TokenDelta] = []
        while arrived := await stream.receive():
            deltas += arrived
    assert deltas[-1].error is not None
    assert "hung" in deltas[-1].error.message
    assert "hung" in (engine.death or "")
    await eventually(lambda: engine.pid is not None and not is_running(engine.pid))


async def test_an_idle_engine_that_answers_has_not_hung(make_engine: object) -> None:
    engine: LocalEngine = make_engine(timeout_seconds=2.0)  # type: ignore[operator]
    await engine.start()
    pings = []
    send = engine._line.send

    def count(message: wire.ToEngine) -> None:
        pings.append(message)
        send(message)

    engine._line.send = count  # type: ignore[method-assign]
    await eventually(lambda: len(pings) > TURNS)  # as many as a silent one gets
    assert engine.is_alive


async def test_an_engine_that_hangs_up_and_stays_is_dead(make_engine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.engine.local_engine.HANG_UP_SECONDS", 0.1)
    engine: LocalEngine = make_engine()  # type: ignore[operator]
    await engine.start()
    with engine.stream([request(1, max_tokens=10**6, min_tokens=10**6)]) as stream:
        await stream.receive()
        engine._line.send_frame(b"\xc1 no message")
        deltas: list[TokenDelta] = []
        while arrived := await stream.receive():
            deltas += arrived
    assert deltas[-1].finish_reason is FinishReason.ERROR
    assert "cannot read what the gateway sent" in (engine.death or "")
    await eventually(lambda: engine.pid is not None and not is_running(engine.pid))


async def test_a_message_that_is_too_long_is_refused_before_it_is_sent(
    make_engine: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: LocalEngine = make_engine()  # type: ignore[operator]
    await engine.start()
    monkeypatch.setattr(engine._line._frames._socket, "_max_frame_bytes", 1000)
    with pytest.raises(ValueError, match="too long"):
        engine.stream([request(1), request(2, text=b"x" * 2000)])
    assert engine._line.router.num_open == 0
    assert await receive_all(engine, request(3))


async def test_requests_before_the_engine_is_ready_are_refused(make_engine: object) -> None:
    engine: LocalEngine = make_engine()  # type: ignore[operator]
    with pytest.raises(EngineDeadError, match="starting"):
        engine.stream([request(1)])


async def test_start_can_be_given_up(make_engine: object) -> None:
    engine: LocalEngine = make_engine()  # type: ignore[operator]
    starting = asyncio.create_task(engine.start())
    await eventually(lambda: engine.pid is not None)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await engine.close()
    assert engine.pid is not None
    assert not psutil.pid_exists(engine.pid)


async def test_steps_that_come_together_are_passed_on_together(make_engine: object) -> None:
    engine: LocalEngine = make_engine()  # type: ignore[operator]
    await engine.start()
    seen: list[int] = []
    stats = wire.Stats(FakeSteps().stats(), engine._line.incarnation)
    with engine._line.router.open([1, 2]) as stream:  # which the engine knows nothing of

        def consume(deltas: list[TokenDelta]) -> bool:
            seen.append(len(deltas))
            return True

        steps = [wire.Deltas([TokenDelta(1, [65]), TokenDelta(2, [65])]) for _ in range(3)]
        draining = asyncio.ensure_future(stream.drain_to(consume))
        await asyncio.sleep(0)
        engine._line.take_in([*steps, stats])
        await draining
    assert seen == [6]
    assert engine.stats() == stats.stats
