"""Whatever goes wrong while a request is taken in, nothing of it stays taken."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from fakes.fake_engine import FakeEngine
from fakes.leak_check import assert_nothing_is_open
from fakes.raw_gateway import raw_gateway
from gateway.engine.engine_client import EngineDeadError
from gateway.services import SERVICES, Services

BODY = {"prompt": ["a", "b"], "n": 2, "max_tokens": 1}
Serve = Callable[..., Awaitable[TestClient[Any, Any]]]


@pytest.mark.parametrize("error", [RuntimeError("broken"), OSError(24, "Too many open files"), EngineDeadError("gone")])
@pytest.mark.parametrize("step", ["engine.stream", "advisor.take_announcement", "open.add", "clock"])
async def test_a_failure_on_the_way_in_gives_all_back(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    engine = FakeEngine()
    client = await serve(engine, max_queue_requests=4)
    services = client.app[SERVICES]  # type: ignore[union-attr]
    for _ in range(3):  # more than the queue holds
        with monkeypatch.context() as patch:
            fail_at(patch, services, step, error)
            response = await client.post("/v1/completions", json=BODY)
            assert response.status in {500, 503}
            assert set(await response.json()) == {"error"}
        await assert_nothing_is_open(services)
    assert (await client.post("/v1/completions", json=BODY)).status == 200
    await assert_nothing_is_open(services)


def fail_at(patch: pytest.MonkeyPatch, services: Services, step: str, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    if step == "clock":  # asked for the time limit, behind everything else
        patch.setattr("gateway.generation.generation.Generation.seconds_left", property(fail))
        return
    owner, _, name = step.partition(".")
    patch.setattr(getattr(services.serving, owner), name, fail)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/advisories"])
async def test_a_session_header_that_is_no_text_is_refused(make_services: Callable[..., Services], path: str) -> None:
    engine = FakeEngine()
    body = json.dumps(BODY if path == "/v1/completions" else {"event": "typing"})
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    async with raw_gateway(make_services(engine)) as gateway:
        client = await gateway.connect(head.encode())
        client.send(b"x-session-id: \xff\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body.encode()))
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"UTF-8" in answer
        await assert_nothing_is_open(gateway.services)
