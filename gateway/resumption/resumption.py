"""Streams that outlive their engine: what was open when it died goes on where it was, on the next one.

Between a request's reader and the engine client, this keeps the tokens that went by. When an engine dies, prompt and
tokens so far are submitted again as soon as an engine is there; the reader, and all that it keeps of the text, of stop
strings, thinking and calls, sees a pause. Never a token twice and never one missing: what counts is what came by here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from gateway.engine.delta_stream import DeltaStream
from gateway.engine.engine_client import EngineClient, EngineDeadError
from gateway.metrics.resumption_metrics import ResumptionMetrics
from gateway.resumption.open_request import OpenRequest
from gateway.resumption.resume_queue import ResumeQueue
from gateway.resumption.suspects import judge, verdict
from schedcore.api.types import RESUMPTION, EngineError, EngineRequest, ErrorCode, FinishReason, TokenDelta

LOOK_SECONDS = 0.02  # between two looks whether an engine is there
_NONE = FinishReason.NONE  # looked up once: this runs per token
CAUSES = {ErrorCode.ENGINE_DEAD: "died", ErrorCode.ENGINE_HUNG: "hung", ErrorCode.MOVED: "moved"}
_LATER = (ErrorCode.QUEUE_FULL, ErrorCode.OVERLOADED)

_log = logging.getLogger("hocket.gateway")


class Resumption:
    """Belongs to one event loop. It makes no task: it is called by the engine client, and by a timer while any wait."""

    def __init__(
        self, engine: EngineClient, metrics: ResumptionMetrics, clock: Callable[[], float], wait_seconds: float
    ) -> None:
        """wait_seconds: for an engine, before whoever waits is told that it died; 0: at once."""
        self._engine, self._metrics, self._clock = engine, metrics, clock
        self._wait_seconds = wait_seconds
        self._open: dict[int, OpenRequest] = {}  # by request id
        self._fallen: list[OpenRequest] = []  # an engine has died, and nobody has judged
        self._waiting = ResumeQueue()
        self._under_way: dict[int, OpenRequest] = {}  # by request id: submitted again, without a token since
        self._timer: asyncio.Handle | None = None

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def num_waiting(self) -> int:
        """For an engine."""
        return len(self._waiting)

    def stream(self, requests: Sequence[EngineRequest]) -> DeltaStream:
        """As EngineClient.stream(), but that an engine's death is no request's end while another may go on.

        Raises EngineDeadError if the engine is not alive.
        """
        if not self._wait_seconds or RESUMPTION in self._engine.info.missing:
            return self._engine.stream(requests)
        now = self._clock()
        stream = DeltaStream([request.request_id for request in requests], self._end)
        engine_stream = self._engine.stream(requests)
        engine_stream.may_move = True
        for request in requests:
            self._open[request.request_id] = OpenRequest(request, stream, engine_stream, now)
        engine_stream.lead_to(stream, self._on_delta)
        return stream

    def _on_delta(self, delta: TokenDelta) -> bool:
        """This runs per token. True: its reader is to be woken."""
        one = self._open.get(delta.request_id)
        if one is None:
            return False
        now = self._clock()
        if delta.finish_reason is not _NONE and not self._is_final(one, delta, now):
            return False
        if not one.is_proven and delta.error is None:
            self._prove(one, now)
        if delta.finish_reason is _NONE:
            one.note(delta.token_ids, now)
        else:
            self._forget(one)
        return one.stream.push(delta)

    def _is_final(self, one: OpenRequest, delta: TokenDelta, now: float) -> bool:
        """Or is it to go on?"""
        if delta.error is None:
            return True
        if delta.error.code in CAUSES:
            self._leave_engine(one)
            one.failure, one.lost_at = delta.error, now
            if delta.error.code is ErrorCode.MOVED:  # nobody died
                one.was_proven = one.is_proven
                self._waiting.add(one)
            else:
                self._fallen.append(one)
            self._wake()  # when all that the engine had are here
            return False
        if one.failure is not None and not one.is_proven and delta.error.code in _LATER:
            self._leave_engine(one)
            one.not_before = now + delta.error.retry_seconds
            self._waiting.add(one)
            self._wake()
            return False
        return True

    def _prove(self, one: OpenRequest, now: float) -> None:
        one.is_proven, one.is_suspect = True, False
        if self._under_way.pop(one.request.request_id, None) is not None:
            self._metrics.pauses.observe(now - one.lost_at)
            self._wake()

    def _leave_engine(self, one: OpenRequest) -> None:
        one.engine_stream = None
        self._under_way.pop(one.request.request_id, None)

    def _forget(self, one: OpenRequest) -> None:
        self._open.pop(one.request.request_id, None)
        if self._under_way.pop(one.request.request_id, None) is not None:
            self._wake()

    def _end(self, request_id: int) -> None:
        """Its reader wants no more."""
        one = self._open.get(request_id)
        if one is None:
            return
        self._forget(one)
        self._waiting.discard(one)
        if one.engine_stream is not None:
            one.engine_stream.end(request_id)

    # ---- after a death ----

    def _wake(self) -> None:
        if self._fallen or self._waiting:
            self._call(0.0)

    def _call(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = self._clock()
        if self._fallen:
            self._judge()
        if not self._engine.is_alive:
            self._give_up_late(now)
        else:
            self._submit_all(now)
        if self._waiting:
            self._call(LOOK_SECONDS)

    def _judge(self) -> None:
        fallen = [one for one in self._fallen if one.request.request_id in self._open]
        self._fallen = []
        for one in fallen:
            one.num_deaths += 1
        guilty = judge(fallen)
        for one in guilty:
            _log.error("A request ends alone: it was running when the engine died, time and again")
            self._fail(one, EngineError(ErrorCode.POISON, verdict(one)))
        for one in fallen:
            if one not in guilty:
                one.was_proven = one.is_proven
                self._waiting.add(one)
        _log.warning("%d open requests go on when an engine is there", len(fallen) - len(guilty))

    def _give_up_late(self, now: float) -> None:
        """Of an engine that will not come back, at once."""
        for one in self._waiting:
            if self._engine.death is not None or now - one.lost_at > self._wait_seconds:
                self._waiting.discard(one)
                self._fail(one, one.failure)

    def _fail(self, one: OpenRequest, error: EngineError | None) -> None:
        request_id = one.request.request_id
        self._forget(one)
        if one.stream.push(TokenDelta(request_id, [], FinishReason.ERROR, error=error)):
            one.stream.wake()

    def _submit_all(self, now: float) -> None:
        """As many as may go on."""
        while (one := self._waiting.take(self._under_way.values(), self._engine.info, now)) is not None:
            try:
                engine_stream = self._engine.stream([one.rest(now)])
            except EngineDeadError:
                self._waiting.add(one)
                return
            assert one.failure is not None
            self._metrics.num_resumed[CAUSES[one.failure.code]] += 1
            engine_stream.may_move = True
            one.engine_stream, one.is_proven = engine_stream, False
            self._under_way[one.request.request_id] = one
            engine_stream.lead_to(one.stream, self._on_delta)
