"""`POST /v1/webhooks/typing`: genuine, fresh, once."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from fakes.fake_engine import FakeEngine
from gateway.config.config import GatewayConfig
from gateway.config.standard_webhooks import WebhookSecret, sign
from gateway.config.tenants import tenant_of
from gateway.services import SERVICES
from schedcore.api.types import AdvisoryEvent

SECRET = "whsec_" + base64.b64encode(b"a" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"b" * 32).decode()
URL = "/v1/webhooks/typing"


async def send(
    client: Any,
    payload: dict[str, Any],
    *,
    secret: str = SECRET,
    message_id: str = "msg_1",
    age: float = 0.0,
    tampered: bytes | None = None,
) -> int:
    body = json.dumps(payload).encode()
    headers = sign([WebhookSecret.parse(secret)], message_id, time.time() - age, body)
    headers["Content-Type"] = "application/json"
    response = await client.post(URL, data=body if tampered is None else tampered, headers=headers)
    return int(response.status)


def typing(session_id: str = "s", kind: str = "typing.started", **fields: Any) -> dict[str, Any]:
    return {"type": kind, "timestamp": "2026-11-21T14:00:00Z", "data": {"session_id": session_id, **fields}}


async def test_a_genuine_webhook_is_an_advisory(serve: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine, typing_webhook_secrets=(SECRET,))
    assert await send(client, typing(eta_ms=5000)) == 204
    assert await send(client, typing(kind="typing.stopped"), message_id="msg_2") == 204
    assert await send(client, typing("t", kind="agent.step"), message_id="msg_3") == 204
    events = [(advisory.session_id, advisory.event) for advisory in engine.advisories]
    assert events == [("s", AdvisoryEvent.TYPING), ("s", AdvisoryEvent.CANCEL), ("t", AdvisoryEvent.AGENT_STEP)]


async def test_it_is_acted_upon_once(serve: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine, typing_webhook_secrets=(SECRET,))
    assert [await send(client, typing()) for _ in range(3)] == [204, 204, 204]
    assert len(engine.advisories) == 1


async def test_what_failed_may_be_sent_again(serve: Any) -> None:
    engine = FakeEngine(is_ready=False)
    client = await serve(engine, typing_webhook_secrets=(SECRET,))
    assert await send(client, typing()) == 503
    engine.become_ready()
    assert await send(client, typing()) == 204
    assert len(engine.advisories) == 1


@pytest.mark.parametrize("wrong", [{"secret": OTHER}, {"age": 301.0}, {"age": -301.0}, {"tampered": b'{"type": 1}'}])
async def test_what_is_not_genuine_or_not_fresh_is_refused(serve: Any, wrong: dict[str, Any]) -> None:
    engine = FakeEngine()
    client = await serve(engine, typing_webhook_secrets=(SECRET,))
    assert await send(client, typing(), **wrong) == 401
    assert not engine.advisories


async def test_without_headers_it_is_refused(serve: Any) -> None:
    client = await serve(FakeEngine(), typing_webhook_secrets=(SECRET,))
    response = await client.post(URL, json=typing())
    assert response.status == 401
    assert "webhook-signature" in (await response.json())["error"]["message"]


async def test_without_a_secret_there_are_no_webhooks(serve: Any) -> None:
    assert await send(await serve(FakeEngine()), typing()) == 404


async def test_a_webhook_acts_for_the_tenant_of_its_secret(serve: Any) -> None:
    engine = FakeEngine()
    secrets = (f"alice:{SECRET}", f"bob:{OTHER}")
    client = await serve(engine, api_keys=("alice", "bob"), typing_webhook_secrets=secrets)
    assert await send(client, typing()) == 204
    assert await send(client, typing(), secret=OTHER) == 204  # the same id, of somebody else
    assert [advisory.tenant for advisory in engine.advisories] == [tenant_of("alice"), tenant_of("bob")]


async def test_the_budget_holds_and_a_refused_webhook_may_come_again(serve: Any) -> None:
    client = await serve(FakeEngine(), typing_webhook_secrets=(SECRET,), max_advisories_per_second=0.001)
    assert [await send(client, typing(str(i)), message_id=f"msg_{i}") for i in range(4)] == [204, 204, 429, 429]
    client.app[SERVICES].advisory_budgets.of("")._advisories.take(-1.0)
    assert await send(client, typing("3"), message_id="msg_3") == 204


async def test_a_session_is_needed(serve: Any) -> None:
    client = await serve(FakeEngine(), typing_webhook_secrets=(SECRET,))
    assert await send(client, {"type": "typing.started", "data": {}}) == 400
    assert await send(client, {"type": "typing.paused", "data": {"session_id": "s"}}) == 400


@pytest.mark.parametrize(
    ("secrets", "keys", "message"),
    [
        (("whsec_short",), (), "openssl rand"),
        ((SECRET,), ("alice", "bob"), "KEY:whsec_"),
        ((f"carol:{SECRET}",), ("alice",), "not configured"),
    ],
)
def test_a_wrong_secret_is_found_at_the_start(secrets: tuple[str, ...], keys: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GatewayConfig(api_keys=keys, typing_webhook_secrets=secrets)
