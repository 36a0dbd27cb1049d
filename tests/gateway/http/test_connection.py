"""Slow, silent, half-closed and malformed clients, byte by byte over real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine, saying
from fakes.raw_gateway import RawGateway, get, post, raw_gateway
from gateway.http.connections import ConnectionLimits
from gateway.services import Services

CHAT = "/v1/chat/completions"
ASK = json.dumps({"messages": [{"role": "user", "content": "Hello"}]})
STREAM = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "stream": True})
SHORT = ConnectionLimits(max_connections=64, head_seconds=0.05, idle_seconds=0.05, stall_seconds=0.05)
type_of_make = Callable[..., Services]


def few(max_connections: int, num_reserved: int = 2) -> ConnectionLimits:
    return ConnectionLimits(max_connections, head_seconds=60, idle_seconds=60, num_reserved=num_reserved)


def error_of(body: bytes) -> dict[str, Any]:
    answer = json.loads(body)
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    return dict(answer["error"])


async def drip(gateway: RawGateway) -> None:
    """A head that goes on as long as anybody listens."""
    client = await gateway.connect("GET /health HTTP/1.1\r\nHost: localhost\r\n")
    rest = asyncio.ensure_future(client.rest())
    while not rest.done():
        client.send("X-A: b\r\n")
        await asyncio.wait({rest}, timeout=0.005)


# Slow


@pytest.mark.parametrize("sent", ["G", "GET /health HTTP/1.1\r\nHost: local", "POST /v1/files HTTP/1.1\r\n"])
async def test_half_a_head_is_told_and_closed(make_services: type_of_make, sent: str) -> None:
    services = make_services(FakeEngine())
    async with raw_gateway(services, SHORT) as gateway:
        client = await gateway.connect(sent)
        status, body = await client.response()
        assert (status, error_of(body)["code"]) == (408, "head_timeout")
        assert await client.rest() == b""
        assert services.serving.metrics.connections.num_closed["head_timeout"] == 1


async def test_dripped_head_is_closed(make_services: type_of_make) -> None:
    services = make_services(FakeEngine())
    async with raw_gateway(services, SHORT) as gateway:
        await drip(gateway)
        assert services.serving.metrics.connections.num_closed["head_timeout"] == 1


async def test_silence_is_closed_without_a_word(make_services: type_of_make) -> None:
    async with raw_gateway(make_services(FakeEngine()), SHORT) as gateway:
        assert await (await gateway.connect()).rest() == b""


async def test_idle_connection_is_closed_after_its_answer(make_services: type_of_make) -> None:
    services = make_services(FakeEngine())
    async with raw_gateway(services, SHORT) as gateway:
        client = await gateway.connect(get("/health"))
        assert (await client.response())[0] == 200
        assert await client.rest() == b""
        assert services.serving.metrics.connections.num_closed["idle_timeout"] == 1


async def test_waiting_for_an_answer_takes_as_long_as_it_takes(make_services: type_of_make) -> None:
    """The limits are over many times while the engine thinks, for a stream and for a whole answer."""
    engine = FakeEngine(saying("Yes."), is_manual=True)
    services = make_services(engine)
    async with raw_gateway(services, SHORT) as gateway:
        clients = [await gateway.connect(post(CHAT, body)) for body in (ASK, STREAM)]
        await eventually(lambda: engine.num_open == 2)
        silent = await gateway.connect()
        await silent.rest()  # the limits have been over for this one
        while engine.num_open:
            engine.step()
        assert (await clients[0].response())[0] == 200
        assert b"[DONE]" in await clients[1].reader.readuntil(b"[DONE]")


async def test_slow_body_is_told_and_closed(make_services: type_of_make) -> None:
    async with raw_gateway(make_services(FakeEngine(), body_timeout_ms=50.0), few(4)) as gateway:
        client = await gateway.connect(post(CHAT, ASK)[:-5])
        status, body = await client.response()
        assert (status, error_of(body)["code"]) == (408, "body_timeout")


async def test_client_that_reads_nothing_is_cut_off(make_services: type_of_make) -> None:
    services = make_services(FakeEngine())
    async with raw_gateway(services, SHORT) as gateway:
        client = await gateway.connect()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        while services.serving.metrics.connections.num_closed["stalled"] == 0:
            client.send(get("/") * 30)  # pages of 15 kB
            await asyncio.sleep(0)
            if client.writer.is_closing():
                break
        await eventually(lambda: len(gateway.connections) == 0)
        assert services.serving.metrics.connections.num_closed["stalled"] == 1


# Too many


async def test_slow_heads_give_way_and_everybody_is_served(make_services: type_of_make) -> None:
    services = make_services(FakeEngine())
    async with raw_gateway(services, few(4)) as gateway:
        for _ in range(30):
            await gateway.connect("GET / HTTP/1.1\r\n")
        client = await gateway.connect(get("/health"))
        assert (await client.response())[0] == 200
        assert len(gateway.connections) <= 6
        assert services.serving.metrics.connections.num_closed["made_room"] >= 20


async def test_idle_connections_give_way(make_services: type_of_make) -> None:
    async with raw_gateway(make_services(FakeEngine()), few(4)) as gateway:
        for _ in range(20):
            client = await gateway.connect(get("/health"))
            assert (await client.response())[0] == 200
        client = await gateway.connect(post(CHAT, ASK))
        assert (await client.response())[0] == 200


async def test_streams_are_not_cut_for_others_who_are_told_so(make_services: type_of_make) -> None:
    engine = FakeEngine(saying("Yes."), is_manual=True)
    services = make_services(engine)
    async with raw_gateway(services, few(3)) as gateway:
        streams = [await gateway.connect(post(CHAT, STREAM)) for _ in range(3)]
        await eventually(lambda: engine.num_open == 3)
        for path in ("/health", "/metrics"):
            client = await gateway.connect(get(path))
            status, body = await client.response()
            assert status == 200
            assert await client.rest() == b""  # its place is needed
        assert b"hocket_max_connections 3.0" in body
        assert b"hocket_connections 4.0" in body
        assert b'hocket_connections_closed_total{reason="refused"} 0.0' in body
        client = await gateway.connect(post(CHAT, ASK))
        status, body = await client.response()
        assert (status, error_of(body)["code"]) == (503, "too_many_connections")
        while engine.num_open:
            engine.step()
        for stream in streams:
            assert b"[DONE]" in await stream.reader.readuntil(b"[DONE]")


async def test_beyond_the_reserved_places_new_connections_are_refused_at_once(make_services: type_of_make) -> None:
    engine = FakeEngine(is_manual=True)
    services = make_services(engine)
    async with raw_gateway(services, few(2, num_reserved=0)) as gateway:
        for _ in range(2):
            await gateway.connect(post(CHAT, ASK))
        await eventually(lambda: engine.num_open == 2)
        answer = await (await gateway.connect()).rest()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert error_of(answer.partition(b"\r\n\r\n")[2])["code"] == "too_many_connections"
        assert services.serving.metrics.connections.num_closed["refused"] == 1
        engine.die("over")


# Half-closed


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("asks", [get, post], ids=["GET", "POST"])
async def test_client_that_sends_nothing_more_gets_its_answer(
    make_services: type_of_make, asks: Callable[..., Any], version: str
) -> None:
    async with raw_gateway(make_services(FakeEngine())) as gateway:
        request = get("/health", version=version) if asks is get else post(CHAT, ASK, version=version)
        client = await gateway.connect(request)
        client.end()
        assert (await client.response())[0] == 200
        assert await client.rest() == b""


async def test_half_closed_client_gets_a_late_answer_after_interim_ones(make_services: type_of_make) -> None:
    engine = FakeEngine(saying("Yes."), is_manual=True)
    async with raw_gateway(make_services(engine)) as gateway:
        client = await gateway.connect(post(CHAT, ASK))
        client.end()
        await eventually(lambda: engine.num_open == 1)
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 102 Processing\r\n\r\n"
        while engine.num_open:
            engine.step()
        assert (await client.response())[0] == 200
        assert await client.rest() == b""


async def test_half_closed_client_gets_its_stream(make_services: type_of_make) -> None:
    async with raw_gateway(make_services(FakeEngine(saying("Yes.")))) as gateway:
        client = await gateway.connect(post(CHAT, STREAM))
        client.end()
        assert (await client.rest()).rstrip().endswith(b"0")  # the last chunk


async def test_half_closed_client_gets_all_answers_it_asked_for(make_services: type_of_make) -> None:
    async with raw_gateway(make_services(FakeEngine())) as gateway:
        client = await gateway.connect(get("/health") + get("/version") + get("/v1/models"))
        client.end()
        assert [(await client.response())[0] for _ in range(3)] == [200, 200, 200]
        assert await client.rest() == b""


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
async def test_client_that_has_gone_still_aborts_its_request(make_services: type_of_make, body: str) -> None:
    engine = FakeEngine(is_manual=True)
    async with raw_gateway(make_services(engine)) as gateway:
        client = await gateway.connect(post(CHAT, body))
        await eventually(lambda: engine.num_open == 1)
        await client.close()
        await eventually(lambda: engine.num_open == 0)
        assert len(gateway.connections) == 0


@pytest.mark.parametrize("sent", ["", "GET /hea", get("/health")[:-2]])
async def test_half_a_head_and_an_end_is_the_end(make_services: type_of_make, sent: str) -> None:
    async with raw_gateway(make_services(FakeEngine())) as gateway:
        client = await gateway.connect(sent)
        client.end()
        assert await client.rest() == b""


async def test_half_a_body_and_an_end_is_the_end(make_services: type_of_make) -> None:
    engine = FakeEngine()
    async with raw_gateway(make_services(engine)) as gateway:
        client = await gateway.connect(post(CHAT, ASK)[:-5])
        client.end()
        assert b"200" not in await client.rest()
        await eventually(lambda: len(gateway.connections) == 0)
        assert engine.requests == []


# Malformed


@pytest.mark.parametrize(
    "sent",
    [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + "a" * 20_000 + "\r\n\r\n",
        "GET /" + "a" * 20_000 + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET / HTTP/1.1\r\n" + "".join(f"X-{i}: a\r\n" for i in range(300)) + "\r\n",
        "nonsense\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX\xff: a\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_an_error_in_our_shape(
    make_services: type_of_make, caplog: pytest.LogCaptureFixture, sent: bytes | str
) -> None:
    async with raw_gateway(make_services(FakeEngine(), enable_access_log=False)) as gateway:
        with caplog.at_level(logging.INFO):
            client = await gateway.connect(sent)
            status, body = await client.response()
        assert status == 400
        assert error_of(body)["type"] == "invalid_request_error"
        assert await client.rest() == b""
    assert "Traceback" not in caplog.text
    assert all(len(record.getMessage()) < 400 for record in caplog.records)


@pytest.mark.parametrize("chunks", ["zz\r\n{}\r\n0\r\n\r\n", "5\r\n{}\r\n", "-1\r\n\r\n", "2\r\n{}XX0\r\n\r\n"])
async def test_broken_chunks_are_an_error_in_our_shape(
    make_services: type_of_make, caplog: pytest.LogCaptureFixture, chunks: str
) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    async with raw_gateway(make_services(FakeEngine(), body_timeout_ms=200.0)) as gateway:
        client = await gateway.connect(head + chunks)
        status, body = await client.response()
        assert status in (400, 408)
        error_of(body)
    assert "Traceback" not in caplog.text


async def test_unknown_expectation_is_an_error_in_our_shape(make_services: type_of_make) -> None:
    async with raw_gateway(make_services(FakeEngine())) as gateway:
        client = await gateway.connect(get("/health", "Expect: a miracle"))
        status, body = await client.response()
        assert status == 400
        error_of(body)


async def test_malformed_requests_do_not_fill_the_log(
    make_services: type_of_make, caplog: pytest.LogCaptureFixture
) -> None:
    services = make_services(FakeEngine())
    async with raw_gateway(services) as gateway:
        for _ in range(50):
            client = await gateway.connect("nonsense\r\n\r\n")
            assert (await client.response())[0] == 400
    assert services.serving.metrics.connections.num_malformed == 50
    assert len(caplog.records) == 1
