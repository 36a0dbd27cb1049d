"""The SDK against a real server on a real socket."""

from __future__ import annotations

import asyncio
import socket

import pytest

import hocket
from fakes.chat_server import FakeChatServer
from hocket import AsyncClient, Client


def test_chat_and_everything_around_it(server: FakeChatServer) -> None:
    with Client(server.url) as client:
        assert client.health().is_healthy
        assert [model.id for model in client.models.list()] == ["demo", "other"]
        assert client.chat.create("Hello!").text == "You said: Hello!"
        assert client.completions.create(["a", "b"]).choices[1].text == "b and so on"
        assert client.detokenize(client.tokenize("héllo").tokens) == "héllo"


def test_a_stream_arrives_word_by_word(server: FakeChatServer) -> None:
    with Client(server.url) as client, client.chat.stream("Hello there!") as stream:
        assert [chunk.text for chunk in stream if chunk.text] == ["You", " said:", " Hello", " there!"]
        answer = stream.final()
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert answer.request_id == "r-1"
    assert answer.timings.ttft_ms is not None
    assert 0 < answer.timings.ttft_ms <= answer.timings.e2e_ms


def test_a_stream_read_to_its_end_leaves_the_connection_for_the_next_request(server: FakeChatServer) -> None:
    with Client(server.url) as client:
        for _ in range(3):
            client.chat.stream("Hello!").final()
        client.chat.create("Hello!")
    assert len({received.peer for received in server.received}) == 1


def test_leaving_a_stream_early_tells_the_server(server: FakeChatServer) -> None:
    server.hold_after = 3
    with Client(server.url) as client:
        with client.chat.stream("Hello!") as stream:
            assert [next(stream).text for _ in range(3)] == ["", "You", " said:"]
        assert server.aborted.wait(10)
        server.hold_after = None
        assert client.chat.create("Still there?").text == "You said: Still there?"


async def test_cancelling_a_task_that_reads_a_stream_tells_the_server(server: FakeChatServer) -> None:
    server.hold_after = 3
    arrived = asyncio.Event()

    async def read(client: AsyncClient) -> None:
        async with client.chat.stream("Hello!") as stream:
            async for chunk in stream:
                if chunk.text == " said:":
                    arrived.set()

    async with AsyncClient(server.url) as client:
        task = asyncio.create_task(read(client))
        await asyncio.wait_for(arrived.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.aborted.wait, 10)


async def test_breaking_out_of_an_async_stream_tells_the_server(server: FakeChatServer) -> None:
    server.hold_after = 3
    async with AsyncClient(server.url) as client:
        async with client.chat.stream("Hello!") as stream:
            async for chunk in stream:
                if chunk.text == " said:":
                    break
        assert await asyncio.to_thread(server.aborted.wait, 10)


def test_silence_in_the_middle_of_a_stream_runs_into_the_read_timeout(server: FakeChatServer) -> None:
    server.hold_after = 3
    with Client(server.url, timeout=hocket.Timeout(10, read=0.2)) as client:
        stream = client.chat.stream("Hello!")
        with pytest.raises(hocket.APITimeoutError) as raised:
            stream.final()
    assert raised.value.phase == "read"
    assert stream.snapshot.text == "You said:"


async def test_many_requests_share_one_async_client(server: FakeChatServer) -> None:
    async with AsyncClient(server.url) as client:
        streams = [client.chat.stream(str(n)).final() for n in range(150)]
        answers = await asyncio.gather(*streams)
    assert [answer.text for answer in answers] == [f"You said: {n}" for n in range(150)]


def test_a_refusal_that_passes_is_not_seen(server: FakeChatServer) -> None:
    server.refuse(429, retry_after="0")
    server.refuse(503, retry_after="0")
    with Client(server.url) as client:
        assert client.chat.create("Hello!").text == "You said: Hello!"
    assert len(server.received) == 3


def test_the_key_is_checked_by_the_server(server: FakeChatServer) -> None:
    server.api_key = "secret"
    with Client(server.url, api_key="wrong") as client, pytest.raises(hocket.AuthenticationError, match="API key"):
        client.chat.create("Hello!")
    with Client(server.url, api_key="secret") as client:
        assert client.chat.create("Hello!").text == "You said: Hello!"


def test_no_server_is_a_connection_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with (
        Client(url, max_retries=0) as client,
        pytest.raises(hocket.APIConnectionError, match=f"cannot connect to {url}"),
    ):
        client.chat.create("Hello!")
