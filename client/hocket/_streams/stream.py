"""A streamed answer: iterate over its chunks, or let `final()` add them up."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from time import perf_counter
from types import TracebackType
from typing import Generic, Self

import httpx

from hocket._accumulate import Chunk, Result
from hocket._calls import StreamCall, read_json
from hocket._connection import AsyncConnection, Connection
from hocket._decode import decode
from hocket._exceptions import StreamError, stream_error, transport_error
from hocket._options import Options
from hocket._types import Timings, Usage

from .sse import ServerSentEvent, SSEDecoder

DONE = "[DONE]"


class BaseStream(Generic[Chunk, Result]):
    """All of a stream but the reading: bytes go in with `_push`, chunks come out of `_pull`."""

    def __init__(
        self,
        call: StreamCall[Chunk, Result],
        options: Options,
        clock: Callable[[], float],
        on_end: Callable[[Result], None] | None = None,
    ) -> None:
        self._call = call
        self._on_end = on_end
        self._options = options
        self._clock = clock
        self._decoder = SSEDecoder()
        self._events: deque[ServerSentEvent] = deque()
        self._accumulator = call.accumulator()
        self._response: httpx.Response | None = None
        self._is_done = False  # the server has said so
        self._is_closed = False
        self._started: float | None = None
        self._arrived = 0.0  # what was read last; a reader that is slow to take it is not the server's delay
        self._first_text: float | None = None
        self._last_text: float | None = None
        self._ended: float | None = None

    @property
    def request_id(self) -> str | None:
        """What the server's log calls this request; None before it has answered."""
        return self._response.headers.get("x-request-id") if self._response is not None else None

    @property
    def usage(self) -> Usage | None:
        """Comes with the last chunk."""
        return self._accumulator.usage

    @property
    def snapshot(self) -> Result:
        """The answer as far as it has come; after an early end, all that there is."""
        return self._accumulator.result(self.request_id, self.timings)

    @property
    def timings(self) -> Timings:
        started = self._started
        if started is None:
            return Timings()
        now = self._clock() if self._ended is None else self._ended
        ttft_ms = None if self._first_text is None else 1000 * (self._first_text - started)
        return Timings(ttft_ms=ttft_ms, tpot_ms=self._tpot_ms(), e2e_ms=1000 * (now - started))

    def _tpot_ms(self) -> float | None:
        num_tokens = self.usage.completion_tokens if self.usage else 0
        if self._first_text is None or self._last_text is None or num_tokens < 2 or self._accumulator.num_choices > 1:
            return None
        return 1000 * (self._last_text - self._first_text) / (num_tokens - 1)

    def _push(self, data: bytes | None) -> None:
        """What was read; None at the end of the body."""
        self._arrived = self._clock()
        if data is not None:
            self._events.extend(self._decoder.feed(data))
        elif self._is_done:
            self._is_closed = True
        else:
            raise StreamError("the stream ended in the middle", request_id=self.request_id)

    def _pull(self) -> Chunk | None:
        """The next chunk; None if more has to be read. After the server's last word the rest of the body is read
        too, it is empty, so that the connection can serve the next request."""
        while self._events and not self._is_done:
            event = self._events.popleft()
            if event.data != DONE:
                return self._take(event)
            self._is_done = True
            self._ended = self._arrived
            self._tell_end()
        return None

    def _take(self, event: ServerSentEvent) -> Chunk:
        payload = read_json(event.data)
        if event.event == "error" or (isinstance(payload, dict) and payload.get("error")):
            raise stream_error(payload, self.request_id)
        chunk = decode(self._call.chunk, payload)
        if self._accumulator.add(chunk):
            self._last_text = self._arrived
            if self._first_text is None:
                self._first_text = self._last_text
        return chunk

    def _broken(self, error: httpx.RequestError) -> None:
        """A connection that breaks after the server's last word has done its work."""
        if not self._is_done:
            raise transport_error(error, self._options.base_url) from error

    def _start(self) -> None:
        if self._is_closed:
            raise StreamError("the stream is closed; what has come is in its `snapshot`")
        self._started = self._clock()

    def _end(self) -> None:
        self._is_closed = True
        if self._ended is None:
            self._ended = self._clock()
        self._tell_end()

    def _tell_end(self) -> None:
        """Once, with the answer as far as it has come."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self.snapshot)

    def _complete(self) -> Result:
        if not self._is_done:
            raise StreamError("the stream was closed before its end; what has come is in its `snapshot`")
        return self.snapshot


class Stream(BaseStream[Chunk, Result]):
    """Use it in a `with` block, then leaving early tells the server to stop:

        with client.chat.stream("Hello!") as stream:
            for chunk in stream:
                print(chunk.text, end="")
        print(stream.usage, stream.timings)

    A plain `for chunk in client.chat.stream(...)` works too, if it runs to the end.
    """

    def __init__(
        self,
        call: StreamCall[Chunk, Result],
        connection: Connection,
        clock: Callable[[], float] = perf_counter,
        on_end: Callable[[Result], None] | None = None,
    ) -> None:
        super().__init__(call, connection.options, clock, on_end)
        self._connection = connection
        self._body: Iterator[bytes] = iter(())

    def __enter__(self) -> Self:
        if self._response is None:
            self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        if self._is_closed:
            raise StopIteration
        try:
            if self._response is None:
                self._open()
            while (chunk := self._pull()) is None:
                self._push(self._read())
                if self._is_closed:
                    raise StopIteration
        except BaseException:
            self.close()
            raise
        return chunk

    def final(self) -> Result:
        """Reads what is left and returns the whole answer."""
        for _ in self:
            pass
        return self._complete()

    def close(self) -> None:
        """Ends the request, if it is not at its end; the server stops generating."""
        self._end()
        if self._response is not None:
            self._response.close()

    def _open(self) -> None:
        self._start()
        self._response = self._connection.open(self._call)
        self._body = self._response.iter_bytes()

    def _read(self) -> bytes | None:
        try:
            return next(self._body, None)
        except httpx.RequestError as error:
            self._broken(error)
            return None


class AsyncStream(BaseStream[Chunk, Result]):
    """`Stream` with `async with`, `async for`, `await stream.final()` and `await stream.close()`."""

    def __init__(
        self,
        call: StreamCall[Chunk, Result],
        connection: AsyncConnection,
        clock: Callable[[], float] = perf_counter,
        on_end: Callable[[Result], None] | None = None,
    ) -> None:
        super().__init__(call, connection.options, clock, on_end)
        self._connection = connection
        self._body: AsyncIterator[bytes]

    async def __aenter__(self) -> Self:
        if self._response is None:
            await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._is_closed:
            raise StopAsyncIteration
        try:
            if self._response is None:
                await self._open()
            while (chunk := self._pull()) is None:
                self._push(await self._read())
                if self._is_closed:
                    raise StopAsyncIteration
        except BaseException:
            await self.close()
            raise
        return chunk

    async def final(self) -> Result:
        """Reads what is left and returns the whole answer."""
        async for _ in self:
            pass
        return self._complete()

    async def close(self) -> None:
        """Ends the request, if it is not at its end; the server stops generating."""
        self._end()
        if self._response is not None:
            await self._response.aclose()

    async def _open(self) -> None:
        self._start()
        self._response = await self._connection.open(self._call)
        self._body = self._response.aiter_bytes()

    async def _read(self) -> bytes | None:
        try:
            return await anext(self._body, None)
        except httpx.RequestError as error:
            self._broken(error)
            return None
