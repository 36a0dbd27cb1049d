"""anthropic-python, which speaks what Claude Code speaks."""

from __future__ import annotations

from typing import Any

import anthropic
from steps import KEY, MODEL, QUESTION, URL, WEATHER, step, version

version("anthropic")
client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
asked: list[Any] = [{"role": "user", "content": QUESTION}]
tool: Any = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}  # type: ignore[index]


@step("chat")
def _() -> Any:
    return client.messages.create(model=MODEL, max_tokens=100, messages=asked).content[0].text


@step("stream")
def _() -> Any:
    with client.messages.stream(model=MODEL, max_tokens=100, messages=asked) as stream:
        return "".join(stream.text_stream)


@step("tool loop")
def _() -> Any:
    first = client.messages.create(
        model=MODEL,
        max_tokens=200,
        messages=asked,
        tools=[tool],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    call = next(block for block in first.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    messages = [*asked, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    return client.messages.create(model=MODEL, max_tokens=100, messages=messages, tools=[tool]).stop_reason


@step("count tokens")
def _() -> Any:
    return client.messages.count_tokens(model=MODEL, messages=asked).input_tokens
