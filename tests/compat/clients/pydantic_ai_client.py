"""pydantic-ai."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolDefinition
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from steps import BASE, KEY, MODEL, QUESTION, step, version

version("pydantic-ai-slim")
provider = OpenAIProvider(base_url=BASE, api_key=KEY)
model = OpenAIChatModel(MODEL, provider=provider)


class Weather(BaseModel, extra="forbid"):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    is_warm: bool


@step("chat")
def _() -> Any:
    return Agent(model).run_sync(QUESTION).output


@step("stream")
def _() -> Any:
    async def streamed() -> str:
        async with Agent(model).run_stream(QUESTION) as result:
            return "".join([piece async for piece in result.stream_text(delta=True)])

    return asyncio.run(streamed())


@step("tool loop")
def _() -> Any:
    calls: list[str] = []
    agent = Agent(model, output_type=Weather, model_settings={"parallel_tool_calls": False})

    async def once(_: Any, definition: ToolDefinition) -> ToolDefinition | None:
        """Small models call it for ever."""
        return None if calls else definition

    @agent.tool_plain(prepare=once)
    def get_weather(city: Literal["Rome", "Oslo"]) -> str:
        """The weather of a city."""
        calls.append(city)
        return "sunny"

    return isinstance(agent.run_sync(QUESTION).output, Weather)


@step("typed output")
def _() -> Any:
    outputs = [Agent(model, output_type=kind).run_sync(QUESTION).output for kind in (Weather, NativeOutput(Weather))]
    return all(isinstance(output, Weather) for output in outputs)


@step("responses")
def _() -> Any:
    return Agent(OpenAIResponsesModel(MODEL, provider=provider)).run_sync(QUESTION).output
