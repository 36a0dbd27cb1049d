"""A generation as an HTTP response that grows: one write per connection for all that has arrived."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from gateway.chunks import Chunks
from gateway.generation import Generation
from gateway.protocol.errors import ApiError, ServerError
from gateway.services import SERVICES
from gateway.sse import HEADERS, KEEPALIVE, error_event
from schedcore.types import TokenDelta

STALL_SECONDS = 10.0  # after the request's time is over, for a client to take what is waiting for it

_log = logging.getLogger("hocket.gateway")


async def stream_response(request: web.Request, generation: Generation, chunks: Chunks) -> web.StreamResponse:
    """Until the first token is there, a failure is an ordinary error response (ApiError); later it is the last event.

    A client that goes away cancels the handler, and leaving the generation aborts what it asked for. A client that
    reads slowly makes only this coroutine wait, and not much longer than the request may take.
    """
    response = web.StreamResponse(headers=HEADERS)
    try:
        async with asyncio.timeout(
            None if generation.seconds_left is None else generation.seconds_left + STALL_SECONDS
        ):
            await _stream(request, response, generation, chunks)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("The client has stopped reading.") from None
    return response


async def _stream(request: web.Request, response: web.StreamResponse, generation: Generation, chunks: Chunks) -> None:
    try:
        deltas = await _first_deltas(request, response, generation)
        while True:
            data = b"".join([chunks.piece(choice, text) for choice, text in generation.absorb(deltas)])
            if generation.is_done:
                data += chunks.end()
            if data:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(data)
            if generation.is_done:
                break
            deltas = await generation.receive()
    except ApiError as error:
        await _end_with(response, error)
    except ConnectionError:
        raise
    except Exception:
        _log.exception("A stream failed")
        await _end_with(response, ServerError("The server failed."))
    await response.write_eof()


async def _first_deltas(request: web.Request, response: web.StreamResponse, generation: Generation) -> list[TokenDelta]:
    """Meanwhile, a comment now and then, so that nobody takes the connection for dead."""
    keepalive_seconds = request.app[SERVICES].config.keepalive_ms / 1e3
    waiting = asyncio.ensure_future(generation.receive())
    try:
        while not (await asyncio.wait({waiting}, timeout=keepalive_seconds))[0]:
            await response.prepare(request)
            await response.write(KEEPALIVE)
        return waiting.result()
    finally:
        waiting.cancel()


async def _end_with(response: web.StreamResponse, error: ApiError) -> None:
    """Raises the error if no header has been sent."""
    if not response.prepared:
        raise error
    await response.write(error_event(error))
