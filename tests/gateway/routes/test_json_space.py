"""Whether an answer by a schema may have whitespace between JSON's tokens: the request says so, or the server."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.fake_engine import FakeEngine

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]})
TEXT = ("/v1/completions", {"prompt": "Hello"})
RESPONSES = ("/v1/responses", {"input": "Hello"})


async def grammar(serve: Any, route: tuple[str, dict[str, Any]], fields: dict[str, Any], **config: Any) -> Any:
    """What reaches the engine."""
    engine = FakeEngine()
    client = await serve(engine, **config)
    response = await client.post(route[0], json=route[1] | fields)
    assert response.status == 200, await response.text()
    return engine.requests[0].grammar


@pytest.mark.parametrize("route", [CHAT, TEXT])
@pytest.mark.parametrize("asked", [{"json": SCHEMA}, {"json_object": True}])
async def test_a_request_says_so(serve: Any, route: Any, asked: dict[str, Any]) -> None:
    for said, has_space in ((None, True), (False, True), (True, False)):
        fields = {"structured_outputs": asked | {"disable_any_whitespace": said}}
        assert (await grammar(serve, route, fields)).has_space is has_space


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        (CHAT, {"response_format": FORMAT}),
        (CHAT, {"response_format": {"type": "json_object"}}),
        (CHAT, {"guided_json": SCHEMA}),
        (TEXT, {"response_format": FORMAT}),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}}}),
    ],
)
async def test_the_server_says_so(serve: Any, route: Any, fields: dict[str, Any]) -> None:
    assert (await grammar(serve, route, fields)).has_space
    assert not (await grammar(serve, route, fields, json_has_space=False)).has_space


async def test_beside_tools(serve: Any) -> None:
    fields = {"response_format": FORMAT, "tools": [TOOL]}
    assert "whitespace_pattern" in (await grammar(serve, CHAT, fields)).text
    answer = (await grammar(serve, CHAT, fields, json_has_space=False)).text.split("answer: ")[1].split("\n")[0]
    assert '"whitespace_flexible": false' in answer


async def test_other_grammars_are_as_they_were(serve: Any) -> None:
    fields = {"structured_outputs": {"regex": "a +", "disable_any_whitespace": True}}
    assert (await grammar(serve, CHAT, fields, json_has_space=False)).has_space
