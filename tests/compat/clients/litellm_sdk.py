"""LiteLLM's SDK, by both of its prefixes."""

from __future__ import annotations

from typing import Any, Literal

import litellm
from pydantic import BaseModel
from steps import BASE, KEY, MODEL, QUESTION, WEATHER, step, version

version("litellm")
litellm.telemetry = False
asked: list[Any] = [{"role": "user", "content": QUESTION}]
options: dict[str, Any] = {"model": f"hosted_vllm/{MODEL}", "api_base": BASE, "api_key": KEY, "messages": asked}


class Weather(BaseModel, extra="forbid"):
    city: Literal["Rome", "Oslo"]
    is_warm: bool


@step("chat")
def _() -> Any:
    return litellm.completion(**options).choices[0].message.content


@step("stream")
def _() -> Any:
    return "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**options, stream=True))


@step("tool loop")
def _() -> Any:
    asked_so = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    by_openai = options | {"model": f"openai/{MODEL}"}  # hosted_vllm/ takes additionalProperties out of schemas
    first = litellm.completion(**by_openai, **asked_so).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"}
    messages = [*asked, first.model_dump(), result]
    return litellm.completion(**by_openai | {"messages": messages}, tools=[WEATHER]).choices[0].finish_reason


@step("typed output")
def _() -> Any:
    answer = litellm.completion(**options | {"model": f"openai/{MODEL}"}, response_format=Weather)
    return Weather.model_validate_json(answer.choices[0].message.content) is not None


@step("embeddings")
def _() -> Any:
    return litellm.embedding(model=f"hosted_vllm/{MODEL}", api_base=BASE, api_key=KEY, input=["Rome"]).data


@step("responses")
def _() -> Any:
    return litellm.responses(model=f"openai/{MODEL}", api_base=BASE, api_key=KEY, input=QUESTION).output


@step("Anthropic bridge")
def _() -> Any:
    import asyncio

    asked_so = litellm.anthropic.messages.acreate(
        model=f"hosted_vllm/{MODEL}", api_base=BASE, api_key=KEY, messages=asked, max_tokens=50
    )
    return asyncio.run(asked_so)["content"]
