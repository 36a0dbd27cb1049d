"""Sends completions to one server and times what comes back; light, since it shares the server's cores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress

import orjson

from bench.lib.load.completion_events import read_completion
from bench.lib.load.http_stream import HttpResponse, HttpStream
from bench.lib.load.request_trace import RequestTrace

Progress = Callable[[RequestTrace], None]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TIMEOUT_SECONDS = 600.0  # of one request


class LoadClient:
    """Use as an async context manager. Traces are complete when `send` or one of the loops below returns."""

    def __init__(
        self,
        base_url: str,
        on_finish: Progress = lambda trace: None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._on_finish = on_finish
        self._timeout_seconds = timeout_seconds
        self._idle: list[HttpStream] = []
        self._unread: list[tuple[RequestTrace, HttpResponse, bytes]] = []

    async def __aenter__(self) -> LoadClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._idle:
            connection.close()

    async def model_name(self) -> str:
        """The first model that the server lists."""
        response = await self._request("GET", "/v1/models", b"")
        if response.status != 200:
            raise ConnectionError(f"{self._base_url}/v1/models answered {response.status}")
        return str(orjson.loads(response.body())["data"][0]["id"])

    async def send(self, body: bytes, arrival: float | None = None, path: str = COMPLETIONS) -> RequestTrace:
        """One request to its end; a failure is written into the trace, never raised."""
        trace = await self.exchange(body, arrival, path)
        self.read_all()
        return trace

    async def exchange(self, body: bytes, arrival: float | None = None, path: str = COMPLETIONS) -> RequestTrace:
        """As `send`, but what came is read later, by `read_all`: first the next request goes out."""
        trace = RequestTrace(time.perf_counter() if arrival is None else arrival)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                response = await self._request("POST", path, body)
        except (TimeoutError, OSError, ValueError) as error:
            trace.error = f"{type(error).__name__}: {error}"
            trace.completion = time.perf_counter()
            self._on_finish(trace)
            return trace
        trace.completion = time.perf_counter()
        self._unread.append((trace, response, body))
        asyncio.get_running_loop().call_soon(self._read_next)
        return trace

    def read_all(self) -> None:
        while self._unread:
            self._read_next()

    def _read_next(self) -> None:
        if self._unread:
            trace, response, body = self._unread.pop(0)
            asked = orjson.loads(body)
            try:
                read_completion(trace, response, asked["max_tokens"] if asked.get("ignore_eos") else None)
            except ValueError as error:
                trace.error = f"{type(error).__name__}: {error}"
            self._on_finish(trace)

    async def _request(self, method: str, path: str, body: bytes) -> HttpResponse:
        connection = self._idle.pop() if self._idle else None
        if connection is None or connection.is_closed:
            connection = await HttpStream.connect(self._base_url)
        response = await connection.request(method, path, body)
        self._idle.append(connection)
        return response


async def closed_loop(client: LoadClient, bodies: Iterable[bytes], concurrency: int) -> list[RequestTrace]:
    """Keeps `concurrency` requests in flight until all bodies are sent and answered."""
    pending = iter(bodies)
    traces: list[RequestTrace] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(_lane(client, pending, traces))
    client.read_all()
    return traces


async def _lane(client: LoadClient, pending: Iterator[bytes], traces: list[RequestTrace]) -> None:
    for body in pending:
        traces.append(await client.exchange(body))  # noqa: PERF401 - others append meanwhile


@asynccontextmanager
async def kept_in_flight(
    client: LoadClient, bodies: Iterable[bytes], concurrency: int
) -> AsyncIterator[list[RequestTrace]]:
    """A closed loop behind something else: the list grows as requests end; leaving gives up those that have not.

    REQUIRES: more bodies than can be answered meanwhile.
    """
    pending = iter(bodies)
    traces: list[RequestTrace] = []
    lanes = [asyncio.create_task(_lane(client, pending, traces)) for _ in range(concurrency)]
    try:
        yield traces
        client.read_all()
    finally:
        for lane in lanes:
            lane.cancel()
        for lane in lanes:
            with suppress(asyncio.CancelledError):
                await lane
