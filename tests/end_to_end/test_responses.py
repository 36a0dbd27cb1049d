"""`/v1/responses` with the unmodified `openai` package against the whole server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest

from fakes.served import Server

KEY = "test-key"
QUESTION = "Hello, how are you?"
SURE: dict[str, Any] = {"temperature": 0, "max_output_tokens": 24}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_a_response_says_what_a_chat_says(client: openai.OpenAI, server: Server) -> None:
    chat = client.chat.completions.create(
        model=server.model, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=24
    )
    response = client.responses.create(model=server.model, input=QUESTION, **SURE, metadata={"a": "b"})
    assert response.output_text == chat.choices[0].message.content
    assert response.id.startswith("resp_")
    assert response.status in ("completed", "incomplete")
    assert response.metadata == {"a": "b"}
    assert response.usage is not None
    assert chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens


def test_instructions_and_items_are_messages(client: openai.OpenAI, server: Server) -> None:
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello!"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"role": "user", "content": QUESTION},
    ]
    messages: Any = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": QUESTION},
    ]
    chat = client.chat.completions.create(model=server.model, messages=messages, temperature=0, max_tokens=24)
    response = client.responses.create(model=server.model, input=items, instructions="Be kind.", **SURE)
    assert response.output_text == chat.choices[0].message.content
    assert response.instructions == "Be kind."


def test_the_stream_has_typed_events_and_says_the_same(client: openai.OpenAI, server: Server) -> None:
    whole = client.responses.create(model=server.model, input=QUESTION, **SURE)
    events = list(client.responses.create(model=server.model, input=QUESTION, stream=True, **SURE))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    assert last.response.output_text == whole.output_text
    assert last.response.usage is not None
    assert whole.usage is not None
    assert last.response.usage.output_tokens == whole.usage.output_tokens
    with client.responses.stream(model=server.model, input=QUESTION, **SURE) as stream:
        assert stream.get_final_response().output_text == whole.output_text


class Weather(pydantic.BaseModel):
    sunny: bool
    degrees: Literal[5, 15, 25]


def test_an_answer_may_have_a_form(client: openai.OpenAI, server: Server) -> None:
    parsed = client.responses.parse(
        model=server.model, input=QUESTION, text_format=Weather, **SURE | {"max_output_tokens": 60}
    )
    assert isinstance(parsed.output_parsed, Weather)
    schema: Any = {"type": "json_schema", "name": "x", "schema": {"not": {}}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=server.model, input=QUESTION, text={"format": schema}, **SURE)
    assert refused.value.param == "text.format.schema"


def test_logprobs_come_if_they_are_asked_for(client: openai.OpenAI, server: Server) -> None:
    response = client.responses.create(
        model=server.model, input=QUESTION, include=["message.output_text.logprobs"], top_logprobs=2, **SURE
    )
    item: Any = response.output[0]
    assert response.usage is not None
    assert len(item.content[0].logprobs) == response.usage.output_tokens
    assert all(len(entry.top_logprobs) == 2 for entry in item.content[0].logprobs)


def test_a_response_is_kept_gone_on_from_and_deleted(client: openai.OpenAI, server: Server) -> None:
    first = client.responses.create(model=server.model, input="Hi", **SURE)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(model=server.model, input=QUESTION, previous_response_id=first.id, **SURE)
    chat = client.chat.completions.create(
        model=server.model,
        messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": QUESTION},
        ],
        temperature=0,
        max_tokens=24,
    )
    assert second.output_text == chat.choices[0].message.content
    assert second.previous_response_id == first.id
    listed: Any = client.responses.input_items.list(second.id).data
    assert [item.content[0].text for item in listed] == ["Hi", first.output_text, QUESTION]
    with pytest.raises(openai.BadRequestError, match="Only responses in the background"):
        client.responses.cancel(first.id)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError, match="There is no response"):
        client.responses.create(model=server.model, input="Hi", previous_response_id=first.id)


def test_a_response_is_its_keys_own_and_not_kept_if_told(client: openai.OpenAI, server: Server) -> None:
    kept = client.responses.create(model=server.model, input="Hi", **SURE)
    with pytest.raises(openai.NotFoundError):
        client.with_options(api_key="another-key").responses.retrieve(kept.id)
    unkept = client.responses.create(model=server.model, input="Hi", store=False, **SURE)
    assert unkept.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True, "stream": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": []}, "input"),
        ({"max_output_tokens": 100_000}, "max_output_tokens"),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    client: openai.OpenAI, server: Server, fields: dict[str, Any], param: str
) -> None:
    body: dict[str, Any] = {"model": server.model, "input": "Hi"} | fields
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**body)
    assert refused.value.param == param


def test_in_the_background(client: openai.OpenAI, server: Server) -> None:
    asked: dict[str, Any] = {"model": server.model, "input": "Hello", "temperature": 0, "max_output_tokens": 12}
    begun = client.responses.create(**asked, background=True)
    assert (begun.status, begun.background) == ("queued", True)
    deadline = time.monotonic() + 60.0
    while begun.status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        begun = client.responses.retrieve(begun.id)
    assert begun.output_text == client.responses.create(**asked).output_text
    assert begun.usage is not None
    endless = client.responses.create(
        **asked | {"max_output_tokens": 1500}, background=True, extra_body={"ignore_eos": True}
    )
    assert client.responses.cancel(endless.id).status == "cancelled"
    assert client.responses.retrieve(endless.id).status == "cancelled"
