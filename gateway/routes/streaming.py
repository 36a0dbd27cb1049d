"""A generation as an HTTP response that grows: one write per connection for all that has arrived.

The first write and the last go through aiohttp. In between, what a step produced goes from the engine client's callback
straight to the transport: no task is woken per token. A client that reads slowly makes only its own handler wait;
its deltas pile up in its stream, `max_tokens` of them at most, and a client that does not read at all is cut off.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from gateway.answers.event_stream import EventStream
from gateway.generation.exchange import Exchange
from gateway.http.sse import HEADERS, KEEPALIVE
from gateway.protocol.errors import ApiError, ServerError
from gateway.services import SERVICES
from schedcore.api.types import TokenDelta

STALL_SECONDS = 60.0  # for a client to read on, once the buffers between it and us are full

MAX_TURN_DELTAS = 128  # of what piled up while a client was behind, rendered in one turn of the event loop

_log = logging.getLogger("hocket.gateway")


class _Response(web.StreamResponse):
    """Its head leaves with the first that is written: a client that wakes for the head alone, on a core that both want,
    has the first token wait meanwhile."""

    _send_headers_immediately = False  # an aiohttp that does not know it sends them at once


async def stream_response(request: web.Request, exchange: Exchange, chunks: EventStream) -> web.StreamResponse:
    """Until the first token is there, a failure is an ordinary error response (ApiError); later it is the last event.

    A client that goes away cancels the handler, and leaving the generation aborts what it asked for.
    """
    response = _Response(headers=HEADERS)
    try:
        await _stream(request, response, exchange, chunks)
    except ApiError as error:
        await _end_with(response, chunks, error)
    except ConnectionError:
        raise
    except Exception:
        _log.exception("A stream failed")
        await _end_with(response, chunks, ServerError("The server failed."))
    await _drain(request)
    await response.write_eof()
    return response


async def _stream(request: web.Request, response: web.StreamResponse, exchange: Exchange, chunks: EventStream) -> None:
    deltas = await _first_deltas(request, response, exchange)
    while not (data := _events(exchange, chunks, deltas)):
        deltas = await exchange.receive()
    if not response.prepared:
        await response.prepare(request)
    await response.write(data)
    connection = _Connection(request, response, exchange, chunks)
    while not exchange.is_done:
        while not exchange.is_done and (deltas := exchange.take_backlog(MAX_TURN_DELTAS)):
            connection.pass_on(deltas)
            await asyncio.sleep(0)
            await _drain(request)
        await exchange.drain_to(connection.pass_on)
        await _drain(request)


def _events(exchange: Exchange, chunks: EventStream, deltas: list[TokenDelta]) -> bytes:
    """What the deltas look like; empty if there is nothing to show yet."""
    pieces = [chunks.piece(choice, text) for choice, text in exchange.absorb(deltas)]
    if exchange.is_done:
        pieces.append(chunks.end())
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _Connection:
    """A prepared response, written to without a task. REQUIRES: nobody else writes meanwhile."""

    def __init__(
        self, request: web.Request, response: web.StreamResponse, exchange: Exchange, chunks: EventStream
    ) -> None:
        self._protocol = request.protocol
        self._is_chunked = "Transfer-Encoding" in response.headers  # HTTP/1.1
        self._exchange, self._chunks = exchange, chunks

    def pass_on(self, deltas: list[TokenDelta]) -> bool:
        """True if it is enough for now: the generation is done, or the client is behind."""
        if data := _events(self._exchange, self._chunks, deltas):
            self._write(data)
        return self._exchange.is_done or self._protocol.writing_paused

    def _write(self, data: bytes) -> None:
        transport = self._protocol.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("The client is gone.")
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)


async def _first_deltas(request: web.Request, response: web.StreamResponse, exchange: Exchange) -> list[TokenDelta]:
    """Meanwhile, a comment now and then, so that nobody takes the connection for dead."""
    keepalive_seconds = request.app[SERVICES].config.keepalive_ms / 1e3
    waiting = asyncio.ensure_future(exchange.receive())
    try:
        while not (await asyncio.wait({waiting}, timeout=keepalive_seconds))[0]:
            await response.prepare(request)
            await response.write(KEEPALIVE)
        return waiting.result()
    finally:
        waiting.cancel()


async def _drain(request: web.Request) -> None:
    """Waits until the client has read most of what was written. Raises ConnectionResetError if it does not read."""
    writer: AbstractStreamWriter = request.writer
    try:
        async with asyncio.timeout(STALL_SECONDS):
            await writer.drain()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("The client has stopped reading.") from None


async def _end_with(response: web.StreamResponse, chunks: EventStream, error: ApiError) -> None:
    """Raises the error if no header has been sent."""
    if not response.prepared:
        raise error
    await response.write(chunks.failure(error))
