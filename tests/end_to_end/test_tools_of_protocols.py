"""Tools by `/v1/responses` and `/v1/messages`, with the unmodified packages: calls that have to come."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import jsonschema
import openai
import pytest

from fakes.json_schemas import SCHEMAS
from fakes.served import Server

KEY = "test-key"
QUESTION = "How is the weather in Paris?"
WEATHER = SCHEMAS["application: weather call"]
OF_OPENAI: Any = [{"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": False}]
OF_ANTHROPIC: Any = [{"name": "get_weather", "description": "The weather.", "input_schema": WEATHER}]


@pytest.fixture
def of_openai(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


@pytest.fixture
def of_anthropic(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0)


def asked(server: Server) -> dict[str, Any]:
    forced = {"tools": OF_OPENAI, "tool_choice": "required", "parallel_tool_calls": False}
    return {"model": server.model, "input": QUESTION, "max_output_tokens": 800, **forced}


def test_a_response_calls_and_takes_the_result(of_openai: openai.OpenAI, server: Server) -> None:
    response = of_openai.responses.create(**asked(server), extra_body={"seed": 3})
    (call,) = response.output
    assert call.type == "function_call"
    assert (call.name, response.status) == ("get_weather", "completed")
    jsonschema.validate(json.loads(call.arguments), WEATHER)
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}]
    answer = of_openai.responses.create(
        model=server.model, input=result, previous_response_id=response.id, tools=OF_OPENAI, max_output_tokens=8
    )
    assert answer.output


def test_a_streamed_response_builds_the_same_call(of_openai: openai.OpenAI, server: Server) -> None:
    whole: Any = of_openai.responses.create(**asked(server), extra_body={"seed": 3}).output[0]
    events = list(of_openai.responses.create(**asked(server), stream=True, extra_body={"seed": 3}))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    done = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    assert "".join(deltas) == done[0] == whole.arguments
    last = events[-1]
    assert last.type == "response.completed"
    assert [item.type for item in last.response.output] == ["function_call"]


def test_a_message_calls_and_takes_the_result(of_anthropic: anthropic.Anthropic, server: Server) -> None:
    question: Any = {"role": "user", "content": QUESTION}
    forced: Any = {"tools": OF_ANTHROPIC, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    message = of_anthropic.messages.create(model=server.model, max_tokens=800, messages=[question], **forced)
    (call,) = message.content
    assert call.type == "tool_use"
    assert (call.name, message.stop_reason) == ("get_weather", "tool_use")
    jsonschema.validate(call.input, WEATHER)
    with of_anthropic.messages.stream(model=server.model, max_tokens=800, messages=[question], **forced) as stream:
        streamed = stream.get_final_message()
    assert streamed.stop_reason == "tool_use"
    assert streamed.content[0].type == "tool_use"
    jsonschema.validate(streamed.content[0].input, WEATHER)
    result: Any = [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}]
    answer = of_anthropic.messages.create(
        model=server.model,
        max_tokens=8,
        tools=OF_ANTHROPIC,
        messages=[question, {"role": "assistant", "content": message.content}, {"role": "user", "content": result}],
    )
    assert answer.usage.output_tokens
