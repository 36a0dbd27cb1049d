"""langchain-openai."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from steps import BASE, KEY, MODEL, QUESTION, step, version

version("langchain-openai")
model = ChatOpenAI(model=MODEL, base_url=BASE, api_key=KEY, max_retries=0)


class Weather(BaseModel, extra="forbid"):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    is_warm: bool


class Place(BaseModel, extra="forbid"):
    city: Literal["Rome", "Oslo"]


@tool(args_schema=Place)
def get_weather(city: Literal["Rome", "Oslo"]) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@step("chat")
def _() -> Any:
    return model.invoke(QUESTION).content


@step("stream")
def _() -> Any:
    return "".join(str(chunk.content) for chunk in model.stream(QUESTION))


@step("tool loop")
def _() -> Any:
    first = model.bind_tools([get_weather], tool_choice="required", strict=True, parallel_tool_calls=False).invoke(
        QUESTION
    )
    result: ToolMessage = get_weather.invoke(first.tool_calls[0])
    return model.bind_tools([get_weather]).invoke([HumanMessage(QUESTION), first, result]).response_metadata


@step("typed output")
def _() -> Any:
    ways = ("json_schema", "function_calling")
    return [isinstance(model.with_structured_output(Weather, method=way).invoke(QUESTION), Weather) for way in ways]


@step("embeddings")
def _() -> Any:
    made = OpenAIEmbeddings(model=MODEL, base_url=BASE, api_key=KEY, check_embedding_ctx_length=False)
    return made.embed_query("Rome")


@step("responses")
def _() -> Any:
    answer = ChatOpenAI(model=MODEL, base_url=BASE, api_key=KEY, use_responses_api=True).invoke(QUESTION)
    return answer.content
