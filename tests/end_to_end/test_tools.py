"""Tools with the unmodified `openai` package against the whole server: what asks for a call gets one, by the grammar,
and its arguments validate. What the demo model calls by itself: test_demo_tools.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pydantic
import pytest

from fakes.json_schemas import SCHEMAS
from fakes.served import Server

KEY = "test-key"
QUESTION: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
WEATHER = SCHEMAS["application: weather call"]
SEARCH = SCHEMAS["application: search call"]
TREE = SCHEMAS["reference: tree"] | {"type": "object"}


class Add(pydantic.BaseModel):
    a: int = pydantic.Field(ge=0, le=99)
    b: int = pydantic.Field(ge=0, le=99)


def tool(name: str, schema: dict[str, Any]) -> Any:
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


TOOLS = [tool("get_weather", WEATHER), tool("search", SEARCH), tool("grow", TREE)]
BY_NAME = {"get_weather": WEATHER, "search": SEARCH, "grow": TREE}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, server: Server, **fields: Any) -> Any:
    defaults: dict[str, Any] = {"model": server.model, "messages": QUESTION, "tools": TOOLS, "seed": 3}
    return client.chat.completions.create(**{**defaults, **fields})


def check_call(call: Any) -> None:
    jsonschema.validate(json.loads(call.function.arguments), BY_NAME[call.function.name])


@pytest.mark.parametrize("temperature", [0, 1])
def test_required_calls_validate(client: openai.OpenAI, server: Server, temperature: float) -> None:
    answer = ask(
        client, server, tool_choice="required", parallel_tool_calls=False, temperature=temperature, max_tokens=800, n=3
    )
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        (call,) = choice.message.tool_calls
        check_call(call)


def test_a_named_tool_is_called(client: openai.OpenAI, server: Server) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    choice = ask(client, server, tool_choice=named, max_tokens=200).choices[0]
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]
    check_call(choice.message.tool_calls[0])


def test_a_stream_says_the_same(client: openai.OpenAI, server: Server) -> None:
    asked: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 800}
    whole = ask(client, server, **asked).choices[0].message.tool_calls[0].function
    chunks = list(ask(client, server, stream=True, **asked))
    pieces = [call for chunk in chunks for c in chunk.choices for call in c.delta.tool_calls or ()]
    assert pieces[0].function.name == whole.name
    assert "".join(piece.function.arguments or "" for piece in pieces) == whole.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_loop_of_calls_and_results(client: openai.OpenAI, server: Server) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    message = ask(client, server, tool_choice=named, max_tokens=200).choices[0].message
    messages = [*QUESTION, message, *_results(message)]
    last = ask(client, server, messages=messages, tool_choice="none", max_tokens=30).choices[0]
    assert last.message.content
    assert last.message.tool_calls is None


def _results(message: Any) -> list[Any]:
    return [{"role": "tool", "tool_call_id": call.id, "content": "Sunny."} for call in message.tool_calls]


def test_the_packages_helpers(client: openai.OpenAI, server: Server) -> None:
    add: Any = openai.pydantic_function_tool(Add)
    asked: Any = {"tools": [add], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 400, "seed": 1}
    answer = client.chat.completions.parse(model=server.model, messages=QUESTION, **asked)
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert all(isinstance(call.function.parsed_arguments, Add) for call in calls)
    with client.chat.completions.stream(model=server.model, messages=QUESTION, **asked) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.tool_calls[0].function.parsed_arguments, Add)  # type: ignore[index]


@pytest.mark.parametrize("stream", [False, True])
def test_tools_that_may_but_need_not_be_called(client: openai.OpenAI, server: Server, stream: bool) -> None:
    greeting = [{"role": "user", "content": "Hello!"}]
    answer = ask(client, server, messages=greeting, max_tokens=30, temperature=0, stream=stream)
    if not stream:
        assert answer.choices[0].message.content
        return
    assert "".join(choice.delta.content or "" for chunk in answer for choice in chunk.choices)


def test_strict_tools_and_a_typed_answer(client: openai.OpenAI, server: Server) -> None:
    """A typed answer, or calls: whichever the model begins."""
    schema = SCHEMAS["object: person"]
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    strict = [t | {"function": t["function"] | {"strict": True}} for t in TOOLS[:1]]
    choice = ask(client, server, tools=strict, response_format=form, max_tokens=1500, temperature=0).choices[0]
    if choice.message.tool_calls:
        check_call(choice.message.tool_calls[0])
    else:
        jsonschema.validate(json.loads(choice.message.content), schema)
