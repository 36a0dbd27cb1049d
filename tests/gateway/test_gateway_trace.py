"""docs/architecture.md traces one chat request: it names files in the order in which they are first called."""

from __future__ import annotations

from typing import Any

from fakes.fake_engine import FakeEngine
from fakes.first_calls import FirstCalls, first_called, named_in_the_trace

ELSEWHERE = {
    *("gateway/http/http_server.py", "gateway/engine/local_engine.py"),  # here are a test's server and engine
    *("gateway/tools/tool_use.py", "gateway/generation/grammar_checks.py"),  # the chat below asks for neither
}


async def test_the_gateway_is_called_in_the_order_of_the_trace(serve: Any) -> None:
    client = await serve(FakeEngine())
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 3}
    with FirstCalls() as calls:
        response = await client.post("/v1/chat/completions", json=body)
        await response.read()
    assert response.status == 200
    named = [name for name in named_in_the_trace("gateway") if name not in ELSEWHERE]
    assert first_called(named, calls.of("gateway")) == named
