"""The lean HTTP connection, against responses cut at every possible place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.lib.load.http_stream import HttpStream

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n7;note=x\r\n, world\r\n0\r\n\r\n"
BROKEN_OFF = CHUNKED[:-9]
WITH_LENGTH = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


class Wire(asyncio.Transport):
    """Keeps what is written; closing tells nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        pass


async def answer(pieces: list[bytes]) -> tuple[int, bytes]:
    """The status and body that a connection makes of a response arriving in these pieces."""
    connection = HttpStream("host:80")
    connection.connection_made(Wire())
    request = asyncio.ensure_future(connection.request("GET", "/", b""))
    await asyncio.sleep(0)  # lets the request be written
    for piece in pieces:
        connection.data_received(piece)
    response = await asyncio.wait_for(request, 5)
    return response.status, response.body()


def cut(response: bytes, places: set[int]) -> list[bytes]:
    borders = [0, *sorted(place for place in places if place < len(response)), len(response)]
    return [response[start:end] for start, end in pairwise(borders)]


@settings(deadline=None)
@given(st.sets(st.integers(1, len(CHUNKED))))
def test_chunked_body_is_the_same_however_it_arrives(places: set[int]) -> None:
    assert asyncio.run(answer(cut(CHUNKED, places))) == (200, b"hello, world")


@settings(deadline=None)
@given(st.sets(st.integers(1, len(WITH_LENGTH))))
def test_body_with_a_length_is_the_same_however_it_arrives(places: set[int]) -> None:
    assert asyncio.run(answer(cut(WITH_LENGTH, places))) == (404, b"gone")


async def test_response_without_a_body_ends_with_its_headers() -> None:
    assert await answer([EMPTY]) == (204, b"")


async def test_garbage_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="not an HTTP response"):
        await answer([b"220 smtp ready\r\n\r\n"])


@asynccontextmanager
async def server_that_sends(response: bytes) -> AsyncIterator[str]:
    """Answers each request with `response`, and hangs up after it unless it is complete."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(response)
                if response == BROKEN_OFF:
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_connection_is_kept_for_the_next_request() -> None:
    async with server_that_sends(CHUNKED) as url:
        connection = await HttpStream.connect(url)
        for _ in range(2):
            assert (await connection.request("GET", "/", b"")).status == 200
        assert not connection.is_closed
        connection.close()


async def test_response_that_breaks_off_is_a_connection_error() -> None:
    async with server_that_sends(BROKEN_OFF) as url:
        connection = await HttpStream.connect(url)
        with pytest.raises(ConnectionError, match="ended before the response"):
            await connection.request("GET", "/", b"")
        assert connection.is_closed


async def test_one_connection_carries_one_request_at_a_time() -> None:
    connection = HttpStream("host:80")
    connection.connection_made(Wire())
    first = asyncio.ensure_future(connection.request("GET", "/", b""))
    await asyncio.sleep(0)
    with pytest.raises(ConnectionError, match="in use"):
        await connection.request("GET", "/", b"")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert connection.is_closed, "half a response may be left in it"
