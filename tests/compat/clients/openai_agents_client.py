"""openai-agents, by /v1/responses (its default) and by chats."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from pydantic import BaseModel
from steps import BASE, KEY, MODEL, QUESTION, step, version

version("openai-agents")
set_tracing_disabled(True)
loop = asyncio.new_event_loop()
client = openai.AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0)
set_default_openai_client(client, use_for_tracing=False)


class Weather(BaseModel, extra="forbid"):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    is_warm: bool


@function_tool
def get_weather(city: Literal["Rome", "Oslo"]) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def chats() -> OpenAIChatCompletionsModel:
    return OpenAIChatCompletionsModel(MODEL, client)


def ran(model: Any, **options: Any) -> Any:
    agent = Agent(name="a", instructions="Be brief.", model=model, **options)
    return loop.run_until_complete(Runner.run(agent, QUESTION, max_turns=4))


@step("chat")
def _() -> Any:
    return ran(OpenAIChatCompletionsModel(MODEL, client)).final_output


@step("responses")
def _() -> Any:
    return ran(MODEL).final_output


@step("stream")
def _() -> Any:
    async def streamed() -> Any:
        result = Runner.run_streamed(Agent(name="a", model=MODEL), QUESTION)
        return [event.type async for event in result.stream_events()]

    return loop.run_until_complete(streamed())


@step("tool loop")
def _() -> Any:
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    found = [ran(model, tools=[get_weather], model_settings=settings) for model in (MODEL, chats())]
    return all(any(item.type == "tool_call_output_item" for item in result.new_items) for result in found)


@step("typed output")
def _() -> Any:
    return all(isinstance(ran(model, output_type=Weather).final_output, Weather) for model in (MODEL, chats()))
