"""Routes that only an operator may open."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fakes.fake_engine import FakeEngine
from schedcore.api.types import CACHE_RESET


@pytest.mark.parametrize(("method", "path"), [("GET", "/tokenizer_info"), ("POST", "/reset_prefix_cache")])
async def test_closed_unless_the_operator_says_so(serve: Any, method: str, path: str) -> None:
    response = await (await serve(FakeEngine())).request(method, path)
    assert response.status == 404
    assert "--enable-" in (await response.json())["error"]["message"]


async def test_the_tokenizer_is_shown_with_the_template_in_use(serve: Any) -> None:
    client = await serve(FakeEngine(), enable_tokenizer_info_endpoint=True)
    shown = await (await client.get("/tokenizer_info")).json()
    assert shown["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert shown["eos_token"] == "<|end|>"
    assert "messages" in shown["chat_template"]


async def test_the_cache_is_emptied(serve: Any) -> None:
    client = await serve(FakeEngine(), enable_cache_reset=True)
    assert await (await client.post("/reset_prefix_cache")).json() == {"num_blocks": 5}


async def test_a_cache_that_would_come_back_is_not_said_to_be_emptied(serve: Any) -> None:
    engine = FakeEngine()
    engine.num_cached_blocks = None
    response = await (await serve(engine, enable_cache_reset=True)).post("/reset_prefix_cache")
    assert (response.status, "--host-cache-bytes" in await response.text()) == (400, True)


async def test_an_engine_that_cannot_is_not_asked(serve: Any) -> None:
    engine = FakeEngine()
    engine.info_to_be = msgspec.structs.replace(engine.info_to_be, missing=[CACHE_RESET, "bad_words"])
    client = await serve(engine, enable_cache_reset=True)
    assert (await client.post("/reset_prefix_cache")).status == 400
    response = await client.post("/v1/completions", json={"prompt": "a", "bad_words": ["b"]})
    assert (response.status, (await response.json())["error"]["param"]) == (400, "bad_words")


async def test_a_dead_engine_is_said(serve: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine, enable_cache_reset=True)
    engine.die("It died.")
    assert (await client.post("/reset_prefix_cache")).status == 503
    engine.revive()
