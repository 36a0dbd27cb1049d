"""smolagents."""

from __future__ import annotations

from typing import Any

from smolagents import OpenAIServerModel, ToolCallingAgent, tool
from steps import BASE, KEY, MODEL, QUESTION, step, version

version("smolagents")
model = OpenAIServerModel(model_id=MODEL, api_base=BASE, api_key=KEY)
asked = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]


@tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Rome or Oslo.
    """
    return f"sunny in {city}"


@step("chat")
def _() -> Any:
    return model.generate(asked).content


@step("stream")
def _() -> Any:
    return "".join(delta.content or "" for delta in model.generate_stream(asked))


@step("a call of a tool")
def _() -> Any:
    return model.generate(asked, tools_to_call_from=[get_weather], max_tokens=200).tool_calls


@step("tool loop")
def _() -> Any:
    return ToolCallingAgent(tools=[get_weather], model=model, max_steps=1, verbosity_level=0).run(QUESTION)
