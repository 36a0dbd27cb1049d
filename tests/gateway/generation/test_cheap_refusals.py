"""What can be refused without looking at the prompt is refused before template and tokeniser do any work."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine
from gateway.model.chat_template import ChatTemplate
from gateway.model.large_texts import LargeTexts
from gateway.model.tokenize import Tokenizer
from gateway.services import SERVICES

Serve = Callable[..., Awaitable[TestClient[Any, Any]]]
ASK = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": ["Hi", "ho"]},
}
ENDPOINTS = pytest.mark.parametrize("path", ASK)


@pytest.fixture
def text_work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What template and tokeniser were asked."""
    return calls_of(monkeypatch, (ChatTemplate, "render"), (Tokenizer, "encode"), (Tokenizer, "encode_all"))


def calls_of(monkeypatch: pytest.MonkeyPatch, *methods: tuple[type, str]) -> list[str]:
    calls: list[str] = []

    def watch(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            calls.append(name)
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, watched)

    for owner, name in methods:
        watch(owner, name)
    return calls


@ENDPOINTS
async def test_whoever_is_served_needs_text_work(serve: Serve, text_work: list[str], path: str) -> None:
    client = await serve(FakeEngine())
    assert (await client.post(path, json=ASK[path])).status == 200
    assert text_work


@ENDPOINTS
async def test_an_unknown_model_is_refused_before_text_work(serve: Serve, text_work: list[str], path: str) -> None:
    client = await serve(FakeEngine())
    assert await refusal(client, path, {"model": "other"}) == (404, "model_not_found")
    assert not text_work


@ENDPOINTS
async def test_a_server_that_shuts_down_does_no_text_work(serve: Serve, text_work: list[str], path: str) -> None:
    client = await serve(FakeEngine())
    client.app[SERVICES].serving.is_draining = True  # type: ignore[union-attr]
    assert await refusal(client, path) == (503, "shutting_down")
    assert not text_work


@ENDPOINTS
async def test_nothing_is_tokenised_for_a_dead_engine(serve: Serve, text_work: list[str], path: str) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    engine.die("It was killed.")
    assert await refusal(client, path) == (503, "engine_dead")
    assert not text_work


@ENDPOINTS
@pytest.mark.parametrize("tier", ["default", "flex"])
async def test_a_full_queue_refuses_before_text_work(serve: Serve, text_work: list[str], path: str, tier: str) -> None:
    engine = FakeEngine(is_manual=True)
    client = await serve(engine, max_queue_requests=2)
    waiting = asyncio.create_task(client.post(path, json=ASK[path] | {"n": 2, "service_tier": tier}))
    await eventually(lambda: engine.num_open >= 2)
    text_work.clear()
    metrics = client.app[SERVICES].serving.metrics  # type: ignore[union-attr]
    assert (await refusal(client, path, {"service_tier": tier}))[0] == 429
    assert not text_work
    assert sum(m.num_refused for m in metrics.of_class.values()) == 1
    while engine.num_open:
        engine.step()
    assert (await waiting).status == 200


@ENDPOINTS
async def test_what_is_longer_than_any_prompt_is_neither_rendered_nor_encoded(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """No token has more characters than the longest of the vocabulary, so the length alone says it."""
    client = await serve(FakeEngine())
    calls = calls_of(monkeypatch, (ChatTemplate, "render"), (Tokenizer, "_encode"), (LargeTexts, "encoding"))
    long = "ab1 " * 100_000
    asks: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": long}]},
        "/v1/completions": {"prompt": ["Hi", long]},
    }
    assert await refusal(client, path, asks[path]) == (400, "context_length_exceeded")
    assert calls == []


@pytest.mark.parametrize(("tier", "logged"), [("default", "online"), ("flex", "offline")])
async def test_the_access_log_names_the_class_of_what_is_refused_early(
    serve: Serve, caplog: pytest.LogCaptureFixture, tier: str, logged: str
) -> None:
    client = await serve(FakeEngine())
    with caplog.at_level(logging.INFO, logger="hocket.access"):
        await refusal(client, "/v1/completions", {"model": "other", "service_tier": tier})
    entry = json.loads(next(record.message for record in caplog.records if record.name == "hocket.access"))
    assert (entry["status"], entry["class"]) == (404, logged)
    assert "prompt_tokens" not in entry


async def refusal(client: TestClient[Any, Any], path: str, fields: dict[str, Any] | None = None) -> tuple[int, str]:
    response = await client.post(path, json=ASK[path] | (fields or {}))
    return response.status, (await response.json())["error"]["code"]
