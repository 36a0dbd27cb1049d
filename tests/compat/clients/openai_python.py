"""openai-python."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
from pydantic import BaseModel
from steps import BASE, KEY, MODEL, QUESTION, WEATHER, step, version

version("openai")
client = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0)
asked: list[Any] = [{"role": "user", "content": QUESTION}]


class Weather(BaseModel, extra="forbid"):
    city: Literal["Rome", "Oslo"]
    is_warm: bool


@step("chat")
def _() -> Any:
    return client.chat.completions.create(model=MODEL, messages=asked).choices[0].message.content


@step("stream")
def _() -> Any:
    with client.chat.completions.stream(model=MODEL, messages=asked) as stream:
        return "".join(event.delta for event in stream if event.type == "content.delta")


@step("tool loop")
def _() -> Any:
    first = client.chat.completions.create(
        model=MODEL, messages=asked, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False
    )
    call = first.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages = [*asked, first.choices[0].message, result]
    return client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER]).choices[0].finish_reason


@step("typed output")
def _() -> Any:
    answer = client.chat.completions.parse(model=MODEL, messages=asked, response_format=Weather)
    return isinstance(answer.choices[0].message.parsed, Weather)


@step("embeddings")
def _() -> Any:
    return len(client.embeddings.create(model=MODEL, input=["Rome", "Oslo"]).data) == 2


@step("responses")
def _() -> Any:
    first = client.responses.create(model=MODEL, input=QUESTION)
    return client.responses.create(model=MODEL, input="And now?", previous_response_id=first.id).output_text


@step("responses, stream")
def _() -> Any:
    with client.responses.stream(model=MODEL, input=QUESTION) as stream:
        return [event.type for event in stream][-1] == "response.completed"


@step("responses, typed output")
def _() -> Any:
    return client.responses.parse(model=MODEL, input=QUESTION, text_format=Weather).output_parsed is not None
