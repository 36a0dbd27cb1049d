"""instructor."""

from __future__ import annotations

from typing import Any, Literal

import instructor
import openai
from pydantic import BaseModel
from steps import BASE, KEY, MODEL, QUESTION, step, version

version("instructor")
client = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0)
asked: list[Any] = [{"role": "user", "content": QUESTION}]


class Weather(BaseModel, extra="forbid"):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    is_warm: bool


def typed(mode: instructor.Mode) -> bool:
    made = instructor.from_openai(client, mode=mode)
    found = made.chat.completions.create(model=MODEL, messages=asked, response_model=Weather, max_retries=0)
    return isinstance(found, Weather)


@step("typed output by tools")
def _() -> Any:
    return typed(instructor.Mode.TOOLS)


@step("typed output by schema")
def _() -> Any:
    return typed(instructor.Mode.JSON_SCHEMA)


@step("stream")
def _() -> Any:
    made = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    parts = made.chat.completions.create_partial(model=MODEL, messages=asked, response_model=Weather)
    return list(parts)[-1].city
