"""What an engine says about the requests of one connection, in order, until each has had its final delta."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from schedcore.api.types import EngineError, ErrorCode, FinishReason, TokenDelta

_NONE = FinishReason.NONE  # looked up once: this runs per token


class DeltaStream:
    """One reader, many requests. Deltas that arrive while the reader is busy are handed over together.

    The reader waits in receive(), or is called by drain_to(). A context manager: leaving it ends every request that is
    still open.
    """

    __slots__ = ("_arrived", "_end", "_failure", "_is_patient", "_listener", "_open", "_tap", "_waiter", "may_move")

    def __init__(self, request_ids: Iterable[int], end: Callable[[int], None]) -> None:
        """`end(request_id)` tells the engine that nobody waits for that request any longer."""
        self._open = set(request_ids)
        self._end = end
        self._arrived: list[TokenDelta] = []
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._listener: Callable[[], None] | None = None
        self._tap: Callable[[TokenDelta], bool] | None = None
        self._is_patient = False  # the reader wants to be woken at the end only
        self.may_move = False  # whoever reads goes on elsewhere with what ends by ErrorCode.MOVED

    @property
    def num_arrived(self) -> int:
        """Deltas that the reader has not taken."""
        return len(self._arrived)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def receive(self) -> list[TokenDelta]:
        """What arrived since the last call, at least one delta. Empty: every request has had its final delta.

        Raises what `fail` was given.
        """
        while not (arrived := self._take()) and self._open:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return arrived

    def take(self, num_deltas: int) -> list[TokenDelta]:
        """The first of what has arrived."""
        taken, self._arrived = self._arrived[:num_deltas], self._arrived[num_deltas:]
        return taken

    async def receive_rest(self) -> list[TokenDelta]:
        """All deltas up to the last one of every request; wakes once. Raises what `fail` was given."""
        self._is_patient = True
        while self._open and self._failure is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._take()

    async def drain_to(self, consumer: Callable[[list[TokenDelta]], bool]) -> None:
        """`consumer` gets what arrives, from within the engine client, until it returns True or all is final.

        That saves the turns of the event loop that waking a task takes. Raises what `fail` was given, or the consumer
        raised.
        """
        end = asyncio.get_running_loop().create_future()

        def hand_on() -> None:  # called again from within the consumer if that calls `fail`
            try:
                while not end.done() and (arrived := self._take()):
                    if consumer(arrived) and not end.done():
                        end.set_result(None)
            except Exception as error:
                if not end.done():
                    end.set_exception(error)
            if not self._open and not end.done():
                end.set_result(None)

        self._listener = hand_on
        try:
            hand_on()
            await end
        finally:
            self._listener = None

    def lead_to(self, reader: DeltaStream, tap: Callable[[TokenDelta], bool]) -> None:
        """Instead of a reader: `tap` gets each delta at once, and says whether `reader` is to be woken for it."""
        self._tap, self._listener = tap, reader.wake
        for delta in self._take():
            if tap(delta):
                reader.wake()

    def push(self, delta: TokenDelta) -> bool:
        """Called by the engine client, in order; at most one final delta per request. True: wake() is due."""
        if delta.finish_reason is not _NONE:
            self._open.discard(delta.request_id)
        if self._tap is not None:
            return self._tap(delta)
        self._arrived.append(delta)
        return not self._open if self._is_patient else len(self._arrived) == 1

    def wake(self) -> None:
        if self._listener is not None:
            self._listener()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """Makes the reader raise `error` once it has taken what has arrived; the first failure counts."""
        self._failure = self._failure or error
        self.wake()

    def set_end(self, end: Callable[[int], None]) -> None:
        """Who hears from now on that nobody waits for a request any longer."""
        self._end = end

    def end(self, request_id: int) -> None:
        """The reader wants no more of this request. Idempotent."""
        if request_id in self._open:
            self._open.discard(request_id)
            self._end(request_id)

    def close(self) -> None:
        for request_id in list(self._open):
            self.end(request_id)

    def _take(self) -> list[TokenDelta]:
        """What arrived since the last call. Raises what `fail` was given, once nothing is left."""
        arrived, self._arrived = self._arrived, []
        if not arrived and self._failure is not None:
            raise self._failure
        return arrived


class DeltaRouter:
    """Leads each delta to the stream that waits for its request. Every engine client has one."""

    def __init__(self, abort: Callable[[int], None]) -> None:
        self._streams: dict[int, DeltaStream] = {}
        self._abort = abort

    @property
    def num_open(self) -> int:
        """Requests without a final delta."""
        return len(self._streams)

    def open(self, request_ids: Iterable[int], opened: DeltaStream | None = None) -> DeltaStream:
        """opened: a stream whose open requests these are; from now on they are this router's."""
        ids = list(request_ids)
        stream = opened or DeltaStream(ids, self._end)
        stream.set_end(self._end)
        for request_id in ids:
            self._streams[request_id] = stream
        return stream

    def dispatch(self, deltas: Iterable[TokenDelta]) -> None:
        """Deltas of requests that nobody waits for any longer are dropped. Each stream is woken once, at the end."""
        streams = self._streams
        woken: list[DeltaStream] = []
        for delta in deltas:
            if delta.finish_reason is _NONE:
                stream = streams.get(delta.request_id)
            else:
                stream = streams.pop(delta.request_id, None)
            if stream is not None and stream.push(delta):
                woken.append(stream)
        for stream in woken:
            stream.wake()

    def release(self, request_ids: Iterable[int]) -> None:
        """They are another router's."""
        for request_id in request_ids:
            self._streams.pop(request_id, None)

    def fail_all(self, code: ErrorCode, message: str) -> None:
        """Every open request gets its final delta now."""
        error = EngineError(code, message)
        self.dispatch([TokenDelta(i, [], FinishReason.ERROR, error=error) for i in list(self._streams)])

    def move_all(self, reason: str) -> None:
        """Those that may go elsewhere end here, and the engine hears of it."""
        moved = [request_id for request_id, stream in self._streams.items() if stream.may_move]
        error = EngineError(ErrorCode.MOVED, reason)
        self.dispatch([TokenDelta(i, [], FinishReason.ERROR, error=error) for i in moved])
        for request_id in moved:
            self._abort(request_id)

    def _end(self, request_id: int) -> None:
        if self._streams.pop(request_id, None) is not None:
            self._abort(request_id)
