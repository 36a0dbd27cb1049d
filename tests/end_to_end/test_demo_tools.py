"""The demo model calls tools by itself and answers from their results, through every API, with unmodified packages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from fakes.served import Server

KEY = "test-key"
ROME = "What is the weather in Rome?"
SKY = "sunny, 21 degrees"


def schema(parameter: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"}}
    return {"type": "object", "properties": properties, "required": [parameter], "additionalProperties": False}


FUNCTIONS = [
    {"name": "get_weather", "description": "The weather of a city", "parameters": schema("city")},
    {"name": "calculate", "description": "Works out an expression", "parameters": schema("expression")},
]
TOOLS: Any = [{"type": "function", "function": function} for function in FUNCTIONS]
STRICT: Any = [{"type": "function", "function": {**function, "strict": True}} for function in FUNCTIONS]
FOR_RESPONSES: Any = [{"type": "function", "strict": True, **function} for function in FUNCTIONS]
FOR_MESSAGES: Any = [
    {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in FUNCTIONS
]
QUESTIONS = [
    (ROME, "get_weather", {"city": "Rome"}),
    ("How is the weather in Oslo?", "get_weather", {"city": "Oslo"}),
    ("What is 123 * 45?", "calculate", {"expression": "123 * 45"}),
    ("What is 17 plus 26?", "calculate", {"expression": "17 + 26"}),
]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, messages: Any, **fields: Any) -> Any:
    defaults: dict[str, Any] = {"model": "demo", "tools": TOOLS, "temperature": 0, "max_tokens": 200}
    asked = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    return client.chat.completions.create(messages=asked, **{**defaults, **fields})


def calls_of(answer: Any) -> list[tuple[str, Any]]:
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = [call.function for call in answer.choices[0].message.tool_calls]
    return [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize("tools", [TOOLS, STRICT, TOOLS[::-1]], ids=["loose", "strict", "reversed"])
@pytest.mark.parametrize(("question", "name", "arguments"), QUESTIONS)
def test_the_tool_that_fits_is_called_with_what_the_user_typed(
    client: openai.OpenAI, question: str, name: str, arguments: dict[str, str], tools: Any
) -> None:
    assert calls_of(ask(client, question, tools=tools)) == [(name, arguments)]


@pytest.mark.parametrize(("question", "name", "arguments"), QUESTIONS)
def test_a_stream_builds_the_same_call(
    client: openai.OpenAI, question: str, name: str, arguments: dict[str, str]
) -> None:
    chunks = list(ask(client, question, stream=True))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    pieces = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [piece.function.name for piece in pieces if piece.function.name] == [name]
    assert json.loads("".join(piece.function.arguments or "" for piece in pieces)) == arguments
    assert not any(delta.content for delta in deltas)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(("question", "result"), [(ROME, SKY), ("What is 123 * 45?", "5535")])
def test_the_reply_says_what_the_tool_returned(client: openai.OpenAI, question: str, result: str) -> None:
    message = ask(client, question).choices[0].message
    told = [{"role": "tool", "tool_call_id": call.id, "content": result} for call in message.tool_calls]
    last = ask(client, [{"role": "user", "content": question}, message, *told]).choices[0]
    assert last.finish_reason == "stop"
    assert result in last.message.content


def test_the_package_runs_the_whole_loop_twice(client: openai.OpenAI) -> None:
    """A second question in the same chat, whose result is another."""
    messages: list[Any] = []
    for question, result in ((ROME, SKY), ("What is 123 * 45?", "5535")):
        messages.append({"role": "user", "content": question})
        message = ask(client, messages).choices[0].message
        messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": result}]
        messages.append(ask(client, messages).choices[0].message)
        assert result in messages[-1].content


@pytest.mark.parametrize("question", ["Hello!", "What day comes after Monday?", "Who are you?"])
@pytest.mark.parametrize("tools", [TOOLS, STRICT], ids=["loose", "strict"])
def test_nothing_is_called_where_no_tool_fits(client: openai.OpenAI, question: str, tools: Any) -> None:
    choice = ask(client, question, tools=tools).choices[0]
    assert choice.message.tool_calls is None
    assert choice.message.content
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize("question", [ROME, "What is 14 + 25?"])
def test_nothing_is_called_where_no_tool_is_offered(client: openai.OpenAI, question: str) -> None:
    choice = ask(client, question, tools=openai.omit).choices[0]
    assert "tool_call" not in choice.message.content
    assert choice.finish_reason == "stop"


def test_a_tool_that_has_to_be_called_gets_the_right_arguments(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("required", named):
        answer = ask(client, ROME, tool_choice=choice, parallel_tool_calls=False)
        call = answer.choices[0].message.tool_calls[0].function
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Rome"})


def test_a_response_calls_and_answers_from_the_result(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "tools": FOR_RESPONSES, "temperature": 0, "max_output_tokens": 200}
    response = client.responses.create(input=ROME, **asked)
    (call,) = response.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Rome"})
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": SKY}]
    answer = client.responses.create(input=result, previous_response_id=response.id, **asked)
    assert SKY in answer.output_text
    with client.responses.stream(input=ROME, **asked) as stream:
        types = [event.type for event in stream]
        streamed: Any = stream.get_final_response().output[0]
    assert "response.function_call_arguments.delta" in types
    assert json.loads(streamed.arguments) == {"city": "Rome"}


def test_a_message_calls_and_answers_from_the_result(server: Server) -> None:
    asked: dict[str, Any] = {
        "model": "demo",
        "tools": FOR_MESSAGES,
        "max_tokens": 200,
        "extra_body": {"temperature": 0},
    }
    question: Any = {"role": "user", "content": ROME}
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as claude:
        message = claude.messages.create(messages=[question], **asked)
        with claude.messages.stream(messages=[question], **asked) as stream:
            streamed = stream.get_final_message()
        for found in (message, streamed):
            assert found.stop_reason == "tool_use"
            assert [(block.name, block.input) for block in found.content if block.type == "tool_use"] == [
                ("get_weather", {"city": "Rome"})
            ]
        result: Any = {"type": "tool_result", "tool_use_id": message.content[-1].id, "content": SKY}
        history: Any = [
            question,
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [result]},
        ]
        last = claude.messages.create(messages=history, **asked)
    assert last.stop_reason == "end_turn"
    assert last.content[0].type == "text"
    assert SKY in last.content[0].text
