"""Bad input: the right status, OpenAI's error shape naming the parameter, and the server goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fakes.bad_requests import BAD_REQUESTS, CHAT, COMPLETIONS, HELLO, BadRequest, check_error
from fakes.fake_engine import FakeEngine
from schedcore.api.types import EngineError, ErrorCode


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.name)
async def test_bad_request_is_refused_and_the_server_goes_on(serve: Any, bad: BadRequest) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    response = await client.request(bad.method, bad.path, data=bad.body, headers={"Content-Type": bad.content_type})
    assert response.status == bad.status, await response.text()
    check_error(await response.json(), bad)
    assert engine.requests == []
    assert (await client.post(CHAT, json={"messages": HELLO})).status == 200


async def test_body_that_is_too_large_is_refused(serve: Any) -> None:
    client = await serve(FakeEngine(), max_body_bytes=1000)
    response = await client.post(COMPLETIONS, json={"prompt": "a" * 2000})
    assert response.status == 413
    assert (await response.json())["error"]["code"] == "body_too_large"
    assert (await client.post(COMPLETIONS, json={"prompt": "a"})).status == 200


async def test_body_that_does_not_arrive_is_not_waited_for(serve: Any) -> None:
    client = await serve(FakeEngine(), body_timeout_ms=50.0)
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
    writer.write(b"Content-Length: 100\r\n\r\n{")
    assert b" 408 " in await reader.readline()
    writer.close()


async def test_unknown_fields_are_ignored(serve: Any) -> None:
    client = await serve(FakeEngine())
    fields = {"messages": HELLO, "store": True, "metadata": {"a": "b"}, "reasoning_effort": "low", "made_up": [1]}
    assert (await client.post(CHAT, json=fields)).status == 200


async def test_nulls_are_defaults(serve: Any) -> None:
    names = ("model", "n", "stop", "temperature", "stream", "max_tokens", "tools", "response_format", "seed")
    client = await serve(FakeEngine())
    assert (await client.post(CHAT, json={"messages": HELLO} | dict.fromkeys(names))).status == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "status", "type_"),
    [
        (ErrorCode.QUEUE_FULL, 429, "rate_limit_error"),
        (ErrorCode.OVERLOADED, 429, "rate_limit_error"),
        (ErrorCode.TOO_LONG, 400, "invalid_request_error"),
        (ErrorCode.INVALID, 400, "invalid_request_error"),
        (ErrorCode.ENGINE_DEAD, 503, "service_unavailable_error"),
        (ErrorCode.INTERNAL, 500, "server_error"),
    ],
)
async def test_refusal_by_the_engine_is_an_http_status(
    serve: Any, stream: bool, code: ErrorCode, status: int, type_: str
) -> None:
    engine = FakeEngine()
    engine.refusal = EngineError(code, "No.")
    response = await (await serve(engine, resume_wait_ms=0.0)).post(
        CHAT, json={"messages": HELLO, "stream": stream, "n": 2}
    )
    assert response.status == status
    assert (await response.json())["error"]["type"] == type_
    assert ("Retry-After" in response.headers) == (status == 429)


async def test_who_is_refused_for_overload_is_told_when_to_come_again(serve: Any) -> None:
    engine = FakeEngine()
    engine.refusal = EngineError(ErrorCode.OVERLOADED, "Later.", 6.2)
    response = await (await serve(engine)).post(CHAT, json={"messages": HELLO})
    assert response.status == 429
    assert response.headers["Retry-After"] == "7"
    assert (await response.json())["error"]["code"] == "overloaded"
