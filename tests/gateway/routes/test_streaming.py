"""Streams in trouble: clients that leave or read slowly, engines that die, requests that take too long."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
from typing import Any

import msgspec
import pytest
from aiohttp.http_writer import StreamWriter

from fakes.byte_tokenizer import END
from fakes.eventually import eventually
from fakes.fake_engine import INFO, FakeEngine, saying
from fakes.sse_reader import parse_events
from gateway.routes import streaming
from gateway.services import SERVICES

LONG_CONTEXT = msgspec.structs.replace(INFO, max_model_len=10**7)
HELLO = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"


async def raw_stream(client: Any, **fields: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A streaming chat over a socket of our own, so that we can misbehave."""
    body = json.dumps({"messages": HELLO, "stream": True} | fields).encode()
    reader, writer = await asyncio.open_connection(client.host, client.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


def endless() -> Any:
    return lambda request: [*b"word "]


async def test_the_head_leaves_with_the_first_event(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent_alone: list[StreamWriter] = []
    monkeypatch.setattr(StreamWriter, "send_headers", lambda writer: sent_alone.append(writer))
    client = await serve(FakeEngine())
    reader, writer = await raw_stream(client)
    begin = await reader.readuntil(b"data: ")
    assert begin.startswith(b"HTTP/1.1 200 OK")
    assert not sent_alone
    writer.close()


async def test_client_that_leaves_while_waiting_aborts_at_once(serve: Any) -> None:
    engine = FakeEngine(is_manual=True)
    client = await serve(engine)
    _, writer = await raw_stream(client, n=2)
    await eventually(lambda: engine.num_open == 2)
    writer.close()
    await eventually(lambda: engine.num_open == 0)
    assert sorted(engine.aborted) == [request.request_id for request in engine.requests]


async def test_client_that_leaves_in_the_middle_aborts_at_once(serve: Any) -> None:
    engine = FakeEngine(endless(), is_manual=True)
    client = await serve(engine)
    reader, writer = await raw_stream(client)
    await eventually(lambda: engine.num_open == 1)
    engine.step()
    await reader.readuntil(b'"w"')
    writer.close()
    await eventually(lambda: engine.num_open == 0)
    assert len(client.app[SERVICES].serving.open) == 0


async def test_client_without_stream_that_leaves_aborts_too(serve: Any) -> None:
    engine = FakeEngine(is_manual=True)
    client = await serve(engine)
    _, writer = await raw_stream(client, stream=False)
    await eventually(lambda: engine.num_open == 1)
    writer.close()
    await eventually(lambda: engine.num_open == 0)
    assert engine.aborted == [engine.requests[0].request_id]


async def test_engine_that_dies_ends_every_stream_with_an_error_event(serve: Any) -> None:
    engine = FakeEngine(endless(), is_manual=True)
    client = await serve(engine)
    streams = [asyncio.create_task(client.post(CHAT, json={"messages": HELLO, "stream": True})) for _ in range(5)]
    plain = asyncio.create_task(client.post(CHAT, json={"messages": HELLO}))
    await eventually(lambda: engine.num_open == 6)
    engine.step()
    responses = [await stream for stream in streams]
    engine.die("The engine was killed by SIGKILL.")
    for response in responses:
        events = parse_events(await response.text())
        assert events[-1]["error"]["type"] == "service_unavailable_error"
        assert events[-1]["error"]["message"] == "The engine was killed by SIGKILL."
        assert sum("error" in event for event in events) == 1
    assert (await plain).status == 503
    assert (await client.get("/health")).status == 503
    assert (await client.post(CHAT, json={"messages": HELLO})).status == 503


async def test_request_that_takes_too_long_is_ended(serve: Any) -> None:
    engine = FakeEngine(endless(), is_manual=True)
    client = await serve(engine, request_timeout_ms=100.0)
    assert (await client.post(CHAT, json={"messages": HELLO})).status == 504

    asking = asyncio.create_task(client.post(CHAT, json={"messages": HELLO, "stream": True}))
    await eventually(lambda: engine.num_open == 1)
    engine.step()
    events = parse_events(await (await asking).text())
    assert events[-1]["error"]["code"] == "request_timeout"
    await eventually(lambda: engine.num_open == 0)


async def test_long_wait_for_the_first_token_is_bridged_with_comments(serve: Any) -> None:
    engine = FakeEngine(saying("Hi"), is_manual=True)
    client = await serve(engine, keepalive_ms=10.0)
    response = await client.post(CHAT, json={"messages": HELLO, "stream": True})
    assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
    while engine.num_open:
        engine.step()
    events = [event for event in parse_events((await response.read()).decode()) if event != ": keep-alive"]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1]) == "Hi"


async def test_full_queue_is_429_with_retry_after(serve: Any) -> None:
    engine = FakeEngine(is_manual=True)
    client = await serve(engine, max_queue_requests=2)
    waiting = asyncio.create_task(client.post(CHAT, json={"messages": HELLO, "n": 2}))
    await eventually(lambda: engine.num_open == 2)
    refused = await client.post(CHAT, json={"messages": HELLO, "stream": True})
    assert refused.status == 429
    assert int(refused.headers["Retry-After"]) >= 1
    assert (await refused.json())["error"]["type"] == "rate_limit_error"
    offline = asyncio.create_task(client.post(CHAT, json={"messages": HELLO, "service_tier": "flex"}))
    await eventually(lambda: engine.num_open == 3)  # bulk work has a queue of its own
    engine.step()  # everybody has a first token: the queue is empty
    asking = asyncio.create_task(client.post(CHAT, json={"messages": HELLO}))
    await eventually(lambda: engine.num_open == 4)
    while engine.num_open:
        engine.step()
    assert [(await response).status for response in (waiting, offline, asking)] == [200, 200, 200]


async def test_slow_reader_delays_nobody_and_loses_nothing(serve: Any) -> None:
    num_tokens = 4000
    many_bytes = {"logprobs": True, "top_logprobs": 20}  # more than the sockets buffer
    engine = FakeEngine(lambda request: [*b"abcdefghij"])
    client = await serve(engine)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (client.host, client.port))
    body = json.dumps({"messages": HELLO, "stream": True, "max_tokens": num_tokens} | many_bytes).encode()
    head = f"POST {CHAT} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    await asyncio.get_running_loop().sock_sendall(sock, head.encode() + body)

    quick = await client.post(CHAT, json={"messages": HELLO, "max_tokens": num_tokens})
    assert (await quick.json())["usage"]["completion_tokens"] == num_tokens
    await eventually(lambda: engine.num_open == 0)
    assert len(client.app[SERVICES].serving.open) == 1  # the slow one has not been told everything yet

    received = bytearray()
    while data := await asyncio.get_running_loop().sock_recv(sock, 65536):
        received += data
    sock.close()
    events = parse_events(received.partition(b"\r\n\r\n")[2].decode())
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1])
    assert text == "abcdefghij" * (num_tokens // 10)


async def test_client_that_stops_reading_is_cut_off(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "STALL_SECONDS", 0.1)
    engine = FakeEngine(endless(), is_manual=True, tokens_per_step=20)
    engine.info_to_be = LONG_CONTEXT
    client = await serve(engine)
    _, writer = await raw_stream(client, max_tokens=10**6, logprobs=True, top_logprobs=20)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await eventually(lambda: engine.num_open == 1)

    def step_until_cut_off() -> bool:
        engine.step()
        return engine.num_open == 0

    await eventually(step_until_cut_off)
    assert engine.aborted == [engine.requests[0].request_id]
    await eventually(lambda: len(client.app[SERVICES].serving.open) == 0)
    writer.transport.abort()


async def test_what_waits_for_a_client_that_does_not_read_is_bounded(serve: Any) -> None:
    """Beyond the transport's buffer nothing is written, and another client gets each token as it is made."""
    engine = FakeEngine(endless(), is_manual=True, tokens_per_step=20)
    engine.info_to_be = LONG_CONTEXT
    client = await serve(engine)
    _, idle = await raw_stream(client, max_tokens=10**6, logprobs=True, top_logprobs=20)
    idle.transport.pause_reading()  # type: ignore[attr-defined]
    await eventually(lambda: engine.num_open == 1)
    engine.step()
    (protocol,) = client.server.handler.connections
    await eventually(lambda: engine.step() or protocol.writing_paused)
    bound = 2 * protocol.transport.get_write_buffer_size()

    reader, quick = await raw_stream(client)
    await eventually(lambda: engine.num_open == 2)
    for _ in range(500):
        engine.step()
        assert b"data: " in await reader.readuntil(b"\n\n")
    assert protocol.transport.get_write_buffer_size() < bound
    quick.close()
    idle.transport.abort()
    await eventually(lambda: engine.num_open == 0)


async def test_a_failure_that_comes_with_tokens_comes_after_them(serve: Any) -> None:
    engine = FakeEngine(endless(), is_manual=True)
    client = await serve(engine)
    asking = asyncio.create_task(client.post(CHAT, json={"messages": HELLO, "stream": True}))
    await eventually(lambda: engine.num_open == 1)
    engine.step()
    response = await asking
    engine.step()
    engine.die("gone")
    events = parse_events(await response.text())
    assert [event["choices"][0]["delta"].get("content") for event in events[:-1]] == ["", "w", "o"]
    assert events[-1]["error"]["message"] == "gone"


async def test_streams_cut_off_at_random_end_exactly_once(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    """200 streams, a third of them cut at random: one final event each, everything comes back, nothing is logged."""
    chance = random.Random(7)
    engine = FakeEngine(lambda request: [*b"word " * 10, END])
    client = await serve(engine, enable_access_log=False)
    is_cut = [i % 3 == 0 for i in range(200)]

    async def one(cut: bool) -> list[Any]:
        reader, writer = await raw_stream(client)
        if cut:
            await reader.read(chance.randrange(1, 4000))
            writer.transport.abort()
            return []
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head
        body = bytearray()
        while (size := int(await reader.readline(), 16)) > 0:
            body += await reader.readexactly(size)
            await reader.readline()
        writer.close()
        return parse_events(body.decode())

    with caplog.at_level(logging.WARNING):
        streams = await asyncio.gather(*(one(cut) for cut in is_cut))
        await eventually(lambda: engine.num_open == 0 and len(client.app[SERVICES].serving.open) == 0)
    for cut, events in zip(is_cut, streams, strict=True):
        if not cut:
            assert events[-1] == "[DONE]"
            reasons = [event["choices"][0]["finish_reason"] for event in events[:-1]]
            assert [reason for reason in reasons if reason] == ["stop"]
    services = client.app[SERVICES]
    assert len(engine.requests) == 200
    assert sum(sum(m.num_finished.values()) for m in services.serving.metrics.of_class.values()) == 200
    assert all(a.num_requests == a.num_tokens == 0 for a in services.serving.admissions.values())
    assert caplog.records == []


async def test_shutdown_lets_open_streams_finish(serve: Any) -> None:
    engine = FakeEngine(saying("Hi"), is_manual=True)
    client = await serve(engine, drain_timeout_ms=10_000.0)
    asking = asyncio.create_task(client.post(CHAT, json={"messages": HELLO, "stream": True}))
    await eventually(lambda: engine.num_open == 1)
    engine.step()
    response = await asking
    closing = asyncio.create_task(client.server.close())
    await eventually(lambda: client.app[SERVICES].serving.is_draining)
    while engine.num_open:
        engine.step()
    assert parse_events(await response.text())[-1] == "[DONE]"
    await closing


async def test_shutdown_tells_streams_that_take_too_long(serve: Any) -> None:
    engine = FakeEngine(endless(), is_manual=True)
    client = await serve(engine, drain_timeout_ms=20.0)
    asking = asyncio.create_task(client.post(CHAT, json={"messages": HELLO, "stream": True}))
    await eventually(lambda: engine.num_open == 1)
    engine.step()
    response = await asking
    closing = asyncio.create_task(client.server.close())
    events = parse_events(await response.text())
    assert events[-1]["error"]["code"] == "shutting_down"
    await closing
    assert engine.num_open == 0
