"""A storm of advisories: refused before anything else is done, late to those who do not heed it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from aiohttp import ClientError

from fakes.fake_engine import FakeEngine
from fakes.manual_clock import ManualClock
from gateway.advisories.advisory_budget import MAX_REFUSAL_SECONDS
from gateway.advisories.turnstile import Turnstile
from gateway.services import SERVICES

STORM, CALM = {"Authorization": "Bearer storm"}, {"Authorization": "Bearer calm"}
KEYS = ("storm", "calm")


def stop_time(client: Any) -> None:
    services = client.app[SERVICES]
    services.serving.clock = services.serving.advisor._clock = ManualClock()


async def test_beyond_the_rate_429_in_openais_shape(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()
    client = await serve(engine, api_keys=KEYS, max_advisories_per_second=2.0)
    stop_time(client)
    with caplog.at_level(logging.INFO, "hocket.access"):
        statuses = [(await client.post("/v1/advisories", data=b"{", headers=STORM)).status for _ in range(7)]
    assert statuses == [415] * 4 + [429] * 3
    assert len([r for r in caplog.records if r.name == "hocket.access"]) == 4  # a storm does not fill the log
    response = await client.post("/v1/advisories", json={}, headers=STORM)
    error = (await response.json())["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "too_many_advisories")
    assert "2 per second" in error["message"]
    assert int(response.headers["Retry-After"]) >= 1
    assert response.headers["x-request-id"]
    calm = await client.post("/v1/advisories", json={"session_id": "s"}, headers=CALM)
    assert calm.status == 200
    assert (await client.post("/v1/chat/completions", json={}, headers=STORM)).status == 400
    assert not [advisory for advisory in engine.advisories if advisory.session_id != "s"]


async def test_sessions_share_the_budget(serve: Any) -> None:
    client = await serve(FakeEngine(), max_advisories_per_second=1.0)
    stop_time(client)
    statuses = [(await client.get("/v1/sessions/s")).status for _ in range(3)]
    assert statuses == [404, 404, 429]


async def test_a_wrong_key_costs_nobody_a_budget(serve: Any) -> None:
    client = await serve(FakeEngine(), api_keys=KEYS, max_advisories_per_second=1.0)
    stop_time(client)
    for _ in range(5):
        assert (await client.post("/v1/advisories", json={}, headers={"Authorization": "Bearer x"})).status == 401
    assert (await client.post("/v1/advisories", json={"session_id": "s"}, headers=STORM)).status == 200


async def test_a_body_that_is_refused_is_not_read(serve: Any) -> None:
    client = await serve(FakeEngine(), max_advisory_bytes_per_second=10.0)
    stop_time(client)
    assert (await client.post("/v1/advisories", json={"session_id": "s" * 200})).status == 200

    async def endless() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    async with asyncio.timeout(10):
        refused = await client.post("/v1/advisories", data=endless(), headers={"Content-Type": "application/json"})
        assert refused.status == 429
        assert "bytes" in (await refused.json())["error"]["message"]


async def test_a_body_of_unsaid_length_is_charged_for_what_it_was(serve: Any) -> None:
    client = await serve(FakeEngine(), max_advisory_bytes_per_second=20_000.0)
    stop_time(client)

    async def long() -> Any:
        yield b'{"session_id": "s", "unknown": "'
        yield b"x" * 200_000 + b'"}'

    headers = {"Content-Type": "application/json"}
    assert (await client.post("/v1/advisories", data=long(), headers=headers)).status == 200
    assert (await client.post("/v1/advisories", json={"session_id": "s"})).status == 429


async def test_who_does_not_heed_refusals_waits_for_them_and_others_do_not(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    client = await serve(FakeEngine(), api_keys=KEYS, max_advisories_per_second=1.0)
    stop_time(client)
    monkeypatch.setattr("gateway.advisories.advisory_gate.asyncio.sleep", sleep)
    dropped = 0
    for _ in range(400):
        try:
            await client.post("/v1/advisories", json={}, headers=STORM)
        except ClientError:
            dropped += 1
    assert waited == sorted(waited)
    assert 0.8 * MAX_REFUSAL_SECONDS < max(waited) <= MAX_REFUSAL_SECONDS
    assert dropped > 0
    text = await (await client.get("/metrics")).text()
    assert f'hocket_advisories_refused_total{{reason="dropped"}} {dropped}.0' in text
    assert (await client.post("/v1/advisories", json={"session_id": "s"}, headers=CALM)).status == 200


async def test_only_a_tenant_whose_refusals_wait_goes_through_the_turnstile(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []

    async def turn(self: Turnstile) -> None:
        turns.append("turn")

    async def sleep(seconds: float) -> None:
        pass

    monkeypatch.setattr(Turnstile, "turn", turn)
    monkeypatch.setattr("gateway.advisories.advisory_gate.asyncio.sleep", sleep)
    client = await serve(FakeEngine(), api_keys=KEYS, max_advisories_per_second=1.0)
    stop_time(client)
    clock = client.app[SERVICES].serving.clock
    while not turns:
        await client.post("/v1/advisories", json={"session_id": "s"}, headers=STORM)
    assert (await client.post("/v1/advisories", json={"session_id": "s"}, headers=CALM)).status == 200
    assert turns == ["turn"]
    while (await client.post("/v1/advisories", json={"session_id": "s"}, headers=STORM)).status == 429:
        clock.advance(0.01)
    assert turns[-1] == "turn"
    clock.advance(10.0)
    num_turns = len(turns)
    assert (await client.post("/v1/advisories", json={"session_id": "s"}, headers=STORM)).status == 200
    assert len(turns) == num_turns
