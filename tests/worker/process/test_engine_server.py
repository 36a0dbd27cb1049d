"""The server over real sockets, with the real core and a scripted executor."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.gateway_peer import GatewayPeer
from fakes.scripted_executor import ScriptedExecutor
from schedcore._core import BatchPlan, CoreError, Scheduler, SchedulerConfig
from schedcore.api import wire
from schedcore.api.types import (
    Advisory,
    AdvisoryEvent,
    EngineInfo,
    EngineRequest,
    ErrorCode,
    FinishReason,
    SessionState,
)
from schedcore.routing.route import session_digest
from schedcore.serving.engine_server import EngineServer
from schedcore.serving.gateway_link import GatewayLink
from worker.process.engine import Engine, EngineLimits
from worker.runner.executor import StepResult

INFO = EngineInfo("tiny", "float32", "cpu", 100, 4096, 4, 4000, 2, 8, 64, "fcfs", 0.1)
JOIN_SECONDS = 30


def request(request_id: int, max_tokens: int = 3) -> EngineRequest:
    return EngineRequest(request_id, [1, 2, 3], max_tokens)


class Serving:
    """An EngineServer in a thread. `failure` is what run() raised."""

    def __init__(self, endpoint: str, executor: ScriptedExecutor, is_orphaned: threading.Event) -> None:
        self.core = Scheduler(SchedulerConfig(num_units=4000, num_layers=2, block_size=4, max_num_seqs=8))
        limits = EngineLimits(vocab_size=100, max_model_len=4096, max_num_batched_tokens=2048, max_num_waiting=4096)
        engine = Engine(self.core, executor, limits, clock=_clock())
        self.executor = executor
        self.link = GatewayLink(endpoint)
        self.server = EngineServer(engine, self.link, INFO, clock=_clock(), is_orphaned=is_orphaned.is_set)
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.server.run()
        except Exception as error:
            self.failure = error
        finally:
            self.link.close()

    def join(self) -> None:
        self._thread.join(JOIN_SECONDS)
        assert not self._thread.is_alive(), "the server does not stop"


def _clock():  # type: ignore[no-untyped-def]
    """A tenth of a second passes with every look: statistics are due every few steps."""
    ticks = iter(range(10**9))
    return lambda: next(ticks) * 0.1


@contextmanager
def serving(endpoint: str, executor: ScriptedExecutor | None = None) -> Iterator[Serving]:
    is_orphaned = threading.Event()
    running = Serving(endpoint, executor or ScriptedExecutor(), is_orphaned)
    try:
        yield running
    finally:
        is_orphaned.set()
        running.join()


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'engine'}"


def test_every_hello_is_answered_with_what_the_engine_is(endpoint: str) -> None:
    with serving(endpoint), GatewayPeer(endpoint) as one, GatewayPeer(endpoint) as two:
        for gateway in (one, two):
            gateway.send(wire.Hello())
            ready = gateway.wait_for(lambda _: True)
            assert isinstance(ready, wire.Ready)
            assert ready == wire.Ready(INFO, ready.incarnation)
            assert len(ready.incarnation) == 32


def test_a_gateway_that_wants_to_hears_what_comes_through_others(endpoint: str) -> None:
    with serving(endpoint), GatewayPeer(endpoint) as one, GatewayPeer(endpoint) as two:
        for gateway, wants in ((one, True), (two, False)):
            gateway.send(wire.Hello(wants_arrivals=wants))
            gateway.wait_for(lambda message: isinstance(message, wire.Ready))
        one.send(wire.Submit(request(1)))
        two.send(wire.Submit(request(1)), wire.Submit(request(2)))
        one.wait_for_final(1)
        two.wait_for_final(1, 2)

        def told(gateway: GatewayPeer) -> list[int]:
            stats = [message for message in gateway.received if isinstance(message, wire.Stats)]
            return [note.num_tokens for message in stats for _, note in message.arrivals]

        if len(told(one)) < 2:
            one.wait_for(lambda _: len(told(one)) == 2)
        assert told(one) == [3, 3]
        assert told(two) == []


def test_requests_are_answered_to_whoever_sent_them(endpoint: str) -> None:
    with serving(endpoint), GatewayPeer(endpoint) as one, GatewayPeer(endpoint) as two:
        one.send(wire.Submit(request(1, max_tokens=4)), wire.Submit(request(2, max_tokens=2)))
        two.send(wire.Submit(request(1, max_tokens=3)))
        one.wait_for_final(1, 2)
        two.wait_for_final(1)
        assert [one.tokens(1), one.tokens(2), two.tokens(1)] == [[0, 1, 2, 3], [0, 1], [0, 1, 2]]


def test_a_step_is_one_message_however_many_requests(endpoint: str) -> None:
    with serving(endpoint) as running, GatewayPeer(endpoint) as gateway:
        gateway.send(*(wire.Submit(request(i, max_tokens=20)) for i in range(8)))
        gateway.wait_for_final(*range(8))
        messages = [message for message in gateway.received if isinstance(message, wire.Deltas)]
        assert len(messages) <= running.executor.num_steps
        assert sum(len(message.deltas) for message in messages) == 160


def test_a_gateway_that_is_busy_for_long_holds_up_nobody_and_misses_nothing(endpoint: str) -> None:
    def all_done(message: wire.ToGateway) -> bool:
        return isinstance(message, wire.Stats) and message.stats.num_finished[FinishReason.LENGTH] == 8

    with serving(endpoint), GatewayPeer(endpoint) as watcher, GatewayPeer(endpoint) as busy:
        watcher.send(wire.Hello())
        busy.send(*(wire.Submit(request(i, max_tokens=3500)) for i in range(8)))  # more than a socket holds
        watcher.wait_for(all_done)
        busy.wait_for_final(*range(8))
        assert [busy.tokens(i) for i in range(8)] == [list(range(3500))] * 8


def test_refusals_arrive_without_a_step(endpoint: str) -> None:
    with serving(endpoint) as running, GatewayPeer(endpoint) as gateway:
        gateway.send(wire.Submit(EngineRequest(5, [1000], 1)))
        gateway.wait_for_final(5)
        error = gateway.deltas[5][0].error
        assert error is not None
        assert error.code == ErrorCode.INVALID
        assert running.executor.num_steps == 0


def test_abort_is_final_once_and_idempotent(endpoint: str) -> None:
    with serving(endpoint), GatewayPeer(endpoint) as gateway:
        gateway.send(wire.Submit(request(1, max_tokens=4000)))
        gateway.wait_for(lambda _: bool(gateway.deltas[1]))
        gateway.send(wire.Abort(1), wire.Abort(1), wire.Abort(77), wire.Submit(request(2)))
        gateway.wait_for_final(1, 2)
        assert [d.finish_reason for d in gateway.deltas[1] if d.finish_reason] == [FinishReason.ABORT]
        assert 77 not in gateway.deltas


@pytest.mark.parametrize(
    "frame", [b"\xc1 nonsense", b"", wire.encode(wire.Shutdown()).replace(b"shutdown", b"shutdowm")]
)
def test_a_gateway_that_sends_no_message_is_told_and_hung_up_on(
    endpoint: str, caplog: pytest.LogCaptureFixture, frame: bytes
) -> None:
    with serving(endpoint), GatewayPeer(endpoint) as gateway, GatewayPeer(endpoint) as other:
        gateway.send(wire.Submit(request(1, max_tokens=4000)))
        gateway.wait_for(lambda _: bool(gateway.deltas[1]))
        gateway.send_frames(frame)
        assert isinstance(gateway.wait_for(lambda message: isinstance(message, wire.Fatal)), wire.Fatal)
        with pytest.raises(ConnectionError):
            gateway.wait_for(lambda _: False)
        other.send(wire.Submit(request(2)))
        other.wait_for_final(2)
        other.wait_for(lambda message: isinstance(message, wire.Stats) and not sum(message.stats.num_running))
    assert "sent what is no message" in caplog.text


def test_a_frame_that_is_too_long_is_no_message_either(endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    with serving(endpoint), socket.socket(socket.AF_UNIX) as line:
        line.settimeout(30)
        line.connect(endpoint.removeprefix("ipc://"))
        line.sendall(b"\xff" * 8)
        said = b""
        while received := line.recv(4096):
            said += received
    assert b"cannot be meant" in said
    assert "hung up on" in caplog.text


def test_who_asks_whether_the_engine_lives_is_answered(endpoint: str) -> None:
    with serving(endpoint), GatewayPeer(endpoint) as gateway:
        gateway.send(wire.Ping())
        assert gateway.wait_for(lambda message: isinstance(message, wire.Pong)) == wire.Pong()


def test_an_advisory_is_answered_by_the_sessions_state(endpoint: str) -> None:
    with serving(endpoint), GatewayPeer(endpoint) as gateway:
        gateway.send(wire.Advise(Advisory("s", AdvisoryEvent.QUERY, request_id=7)))
        answer = gateway.wait_for(lambda message: isinstance(message, wire.Session))
        assert isinstance(answer, wire.Session)
        assert answer.state == SessionState(7, is_known=False)


def test_statistics_come_while_working_and_once_when_idle(endpoint: str) -> None:
    with serving(endpoint), GatewayPeer(endpoint) as gateway:
        gateway.send(wire.Submit(request(1, max_tokens=200)))
        while_working = gateway.wait_for(lambda message: isinstance(message, wire.Stats))
        assert isinstance(while_working, wire.Stats)
        assert while_working.stats.num_running == [1, 0, 0]
        gateway.wait_for_final(1)
        at_rest = gateway.wait_for(
            lambda message: isinstance(message, wire.Stats) and not sum(message.stats.num_running)
        )
        assert isinstance(at_rest, wire.Stats)
        assert at_rest.stats.num_output_tokens == 200


def test_shutdown_aborts_what_is_open_then_stops(endpoint: str) -> None:
    with serving(endpoint) as running, GatewayPeer(endpoint) as gateway:
        gateway.send(wire.Submit(request(1, max_tokens=4000)))
        gateway.wait_for(lambda _: bool(gateway.deltas[1]))
        gateway.send(wire.Shutdown())
        gateway.wait_for_final(1)
        assert gateway.deltas[1][-1].finish_reason == FinishReason.ABORT
        running.join()
        assert running.failure is None


def test_the_requests_of_a_gateway_that_is_gone_are_aborted(endpoint: str) -> None:
    with serving(endpoint) as running, GatewayPeer(endpoint) as staying:
        leaving = GatewayPeer(endpoint)
        leaving.send(wire.Submit(request(1, max_tokens=4000)))
        leaving.wait_for(lambda _: bool(leaving.deltas[1]))
        leaving.close()
        staying.send(wire.Submit(request(2, max_tokens=3000)))
        staying.wait_for(lambda m: isinstance(m, wire.Stats) and m.stats.num_finished[FinishReason.ABORT] == 1)
        staying.send(wire.Abort(2))
        staying.wait_for_final(2)
        assert running.executor.requests == {}


def test_when_a_step_fails_every_open_request_fails_and_gateways_are_told(endpoint: str) -> None:
    class FailsOnceAllAreOpen(ScriptedExecutor):
        def execute(self, plan: BatchPlan) -> StepResult:
            if len(self.requests) == 20:
                raise FloatingPointError("the accelerator is on fire")
            return super().execute(plan)

    with (
        serving(endpoint, FailsOnceAllAreOpen()) as running,
        GatewayPeer(endpoint) as one,
        GatewayPeer(endpoint) as two,
    ):
        two.send(wire.Hello())
        two.wait_for(lambda _: True)
        one.send(*(wire.Submit(request(i, max_tokens=4000)) for i in range(20)))
        for gateway in (one, two):
            fatal = gateway.wait_for(lambda message: isinstance(message, wire.Fatal))
            assert "on fire" in str(fatal)
        one.wait_for_final(*range(20))
        finals = [deltas[-1] for deltas in one.deltas.values()]
        assert {final.error.code for final in finals if final.error} == {ErrorCode.ENGINE_DEAD}
        assert "FloatingPointError: the accelerator is on fire" in finals[0].error.message  # type: ignore[union-attr]
        running.join()
        assert isinstance(running.failure, FloatingPointError)


def test_a_broken_invariant_found_at_rest_stops_the_engine(endpoint: str) -> None:
    class Leaky(ScriptedExecutor):
        core: Scheduler

        def execute(self, plan: BatchPlan) -> StepResult:
            result = super().execute(plan)
            if self.num_steps == 2:
                self.core.abort(1)  # behind the engine's back
            return result

    executor = Leaky()
    with serving(endpoint, executor) as running, GatewayPeer(endpoint) as gateway:
        executor.core = running.core
        gateway.send(wire.Submit(request(1, max_tokens=100)))
        gateway.wait_for(lambda message: isinstance(message, wire.Fatal))
        gateway.wait_for_final(1)
        assert gateway.deltas[1][-1].finish_reason == FinishReason.ERROR
        running.join()
        assert isinstance(running.failure, RuntimeError | CoreError)


def test_an_orphaned_engine_stops(endpoint: str) -> None:
    is_orphaned = threading.Event()
    running = Serving(endpoint, ScriptedExecutor(), is_orphaned)
    is_orphaned.set()
    running.join()
    assert running.failure is None


def test_an_endpoint_that_cannot_be_bound_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        GatewayLink(f"ipc://{tmp_path / 'no' / 'such' / 'folder'}")


def test_other_gateways_hear_of_a_gateways_sessions(endpoint: str) -> None:
    def tells(message: wire.ToGateway) -> bool:
        return isinstance(message, wire.Stats) and bool(message.sessions)

    def is_stats(message: wire.ToGateway) -> bool:
        return isinstance(message, wire.Stats)

    with serving(endpoint), GatewayPeer(endpoint) as one, GatewayPeer(endpoint) as two:
        two.send(wire.Hello())
        two.wait_for(lambda _: True)
        one.send(wire.Submit(EngineRequest(1, [1, 2, 3], 3, session_id="a")))
        told = two.wait_for(tells)
        assert isinstance(told, wire.Stats)
        assert told.sessions == [wire.SessionNote(session_digest("", "", "a"), 3)]
        one.wait_for(is_stats)
        assert not any(map(tells, one.received))
        one.send(wire.Advise(Advisory("b", AdvisoryEvent.TYPING)))  # while the engine has nothing to do
        told = two.wait_for(tells)
        assert isinstance(told, wire.Stats)
        assert told.sessions == [wire.SessionNote(session_digest("", "", "b"), 0, True)]
        with GatewayPeer(endpoint) as late:
            late.send(wire.Hello())
            told = late.wait_for(tells)
            assert isinstance(told, wire.Stats)
            assert len(told.sessions) == 2
