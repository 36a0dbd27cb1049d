"""The client that looks seldom, beside a server on this machine: whole answers, the kernel's times, clear errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from bench.lib.load.patient_reader import LOOK_SECONDS, PatientReader, is_possible

pytestmark = pytest.mark.skipif(not is_possible(), reason="needs CAP_NET_RAW")

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WORDS = ("one", "two", "three", "four")
PIECES = (HEAD, *(b"%x\r\n%s\r\n" % (len(text), text) for text in (f"data: {w}\n\n".encode() for w in WORDS)))
LAST = b"0\r\n\r\n"
PAUSE_SECONDS = LOOK_SECONDS / 10  # several pieces come between two looks


@asynccontextmanager
async def server_that_sends(*pieces: bytes) -> AsyncIterator[str]:
    """Answers each request with `pieces`, a packet each, and hangs up after them unless the last one is LAST."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(PAUSE_SECONDS)
                if pieces[-1] != LAST:
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_each_piece_has_the_time_at_which_it_came() -> None:
    async with server_that_sends(*PIECES, LAST) as url:
        reader = PatientReader(url)
        start, response = await reader.request("GET", "/", b"")
        reader.close()
    events = list(response.events())
    assert [event for _, event in events] == [f"data: {word}".encode() for word in WORDS]
    times = [start, *(moment for moment, _ in events)]
    assert all(later - earlier >= 0.5 * PAUSE_SECONDS for earlier, later in pairwise(times))


async def test_connection_is_kept_for_the_next_request() -> None:
    async with server_that_sends(*PIECES, LAST) as url:
        reader = PatientReader(url)
        bodies = [(await reader.request("GET", "/", b""))[1].body() for _ in range(2)]
        reader.close()
    assert bodies == ["".join(f"data: {word}\n\n" for word in WORDS).encode()] * 2


async def test_response_that_breaks_off_is_a_connection_error() -> None:
    async with server_that_sends(*PIECES) as url:
        reader = PatientReader(url)
        with pytest.raises(ConnectionError, match="ended before the response"):
            await reader.request("GET", "/", b"")
        reader.close()


async def test_nobody_listening_is_an_error_at_once() -> None:
    async with server_that_sends(LAST) as url:
        pass
    with pytest.raises(ConnectionError):
        PatientReader(url)
