"""Requests that come while no node can take them: they wait for one, for so long and not longer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.engine.delta_stream import DeltaRouter, DeltaStream
from gateway.fleet.node import TURN_SECONDS
from schedcore.api.types import EngineError, EngineRequest, ErrorCode, FinishReason, RequestClass, TokenDelta

RETRY_SECONDS = 5.0  # that who has waited in vain for a node is told to wait before the next try


@dataclass(slots=True)
class _Waiting:
    """The requests of one connection."""

    requests: list[EngineRequest]
    stream: DeltaStream
    num_turns: int  # that are left


class Lobby:
    def __init__(self, wait_seconds: float) -> None:
        """wait_seconds: that a request waits at most. Offline work waits as long as it takes."""
        self._max_turns = max(1, round(wait_seconds / TURN_SECONDS))
        self._router = DeltaRouter(self._on_abort)
        self._waiting: list[_Waiting] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        """Requests of one connection are one."""
        return len(self._waiting)

    def requests(self) -> Iterator[EngineRequest]:
        for waiting in self._waiting:
            yield from waiting.requests

    def open(self, requests: Sequence[EngineRequest]) -> DeltaStream:
        stream = self._router.open(request.request_id for request in requests)
        self._waiting.append(_Waiting(list(requests), stream, self._max_turns))
        return stream

    @property
    def first(self) -> EngineRequest:
        """Of those that came first. REQUIRES: somebody waits."""
        return self._waiting[0].requests[0]

    def take_first(self) -> tuple[list[EngineRequest], DeltaStream]:
        """They wait no longer. REQUIRES: somebody waits."""
        first = self._waiting.pop(0)
        self._router.release(request.request_id for request in first.requests)
        return first.requests, first.stream

    def pass_turn(self) -> None:
        """Every TURN_SECONDS. Who has waited in vain is refused."""
        for waiting in self._waiting:
            waiting.num_turns -= all(r.request_class is not RequestClass.OFFLINE for r in waiting.requests)
        late = [waiting for waiting in self._waiting if waiting.num_turns <= 0]
        if not late:
            return
        self._waiting = [waiting for waiting in self._waiting if waiting.num_turns > 0]
        error = EngineError(ErrorCode.OVERLOADED, "No node of the fleet can take requests now.", RETRY_SECONDS)
        for waiting in late:
            deltas = [TokenDelta(r.request_id, [], FinishReason.ERROR, error=error) for r in waiting.requests]
            self._router.dispatch(deltas)

    def close(self) -> None:
        self._router.fail_all(ErrorCode.ENGINE_DEAD, "The server is shutting down.")
        self._waiting.clear()

    def _on_abort(self, request_id: int) -> None:
        """Its stream is closed whole, or choice by choice."""
        for waiting in self._waiting:
            waiting.requests = [request for request in waiting.requests if request.request_id != request_id]
        self._waiting = [waiting for waiting in self._waiting if waiting.requests]
