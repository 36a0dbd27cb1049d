"""LlamaIndex, OpenAI-like."""

from __future__ import annotations

from typing import Any, Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from steps import BASE, KEY, MODEL, QUESTION, step, version

version("llama-index-llms-openai-like")
model = OpenAILike(
    model=MODEL,
    api_base=BASE,
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=2048,
    max_tokens=200,
    max_retries=0,
)


class Weather(BaseModel, extra="forbid"):
    """The weather of a city."""

    city: Literal["Rome", "Oslo"]
    is_warm: bool


class Place(BaseModel, extra="forbid"):
    city: Literal["Rome", "Oslo"]


def get_weather(city: Literal["Rome", "Oslo"]) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@step("chat")
def _() -> Any:
    return model.chat([ChatMessage(role="user", content=QUESTION)]).message.content


@step("stream")
def _() -> Any:
    return "".join(chunk.delta or "" for chunk in model.stream_chat([ChatMessage(role="user", content=QUESTION)]))


@step("tool loop")
def _() -> Any:
    tools = [FunctionTool.from_defaults(get_weather, fn_schema=Place)]
    answer = model.chat_with_tools(tools, user_msg=QUESTION, tool_required=True, allow_parallel_tool_calls=False)
    call = model.get_tool_calls_from_response(answer)[0]
    result = tools[0].call(**call.tool_kwargs)
    history = [ChatMessage(role="user", content=QUESTION), answer.message]
    told = ChatMessage(role="tool", content=str(result), additional_kwargs={"tool_call_id": call.tool_id})
    return model.chat([*history, told]).message is not None


@step("typed output")
def _() -> Any:
    return isinstance(model.structured_predict(Weather, PromptTemplate(QUESTION)), Weather)


@step("embeddings")
def _() -> Any:
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    made = OpenAILikeEmbedding(model_name=MODEL, api_base=BASE, api_key=KEY, max_retries=0)
    return made.get_text_embedding("Rome")
