"""Answers of a stated form, from the whole server, by the unmodified `openai` package and plain HTTP."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pydantic
import pytest

from fakes.json_schemas import SCHEMAS
from fakes.served import Server

KEY = "test-key"
HELLO: list[Any] = [{"role": "user", "content": "Hello, how are you?"}]
NAMES = ("object: person", "array: of objects", "enum: many", "choice: tagged", "application: weather call")


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)
    mood: Literal["good", "bad"]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def ask(client: openai.OpenAI, server: Server, **fields: Any) -> Any:
    defaults: dict[str, Any] = {"model": server.model, "messages": HELLO, "max_tokens": 400, "seed": 5}
    return client.chat.completions.create(**{**defaults, **fields})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0, 1])
def test_answers_validate(client: openai.OpenAI, server: Server, name: str, temperature: float) -> None:
    answer = ask(client, server, response_format=schema_format(SCHEMAS[name]), temperature=temperature, n=3)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), SCHEMAS[name])


def test_without_whitespace(client: openai.OpenAI, server: Server) -> None:
    asked = {"json": SCHEMAS["object: person"], "disable_any_whitespace": True}
    answer = ask(client, server, extra_body={"structured_outputs": asked})
    text = answer.choices[0].message.content
    jsonschema.validate(json.loads(text), asked["json"])
    assert re.match(r'\{"\w+":', text)


def test_parse_gives_objects(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.parse(
        model=server.model, messages=HELLO, response_format=Person, max_tokens=200, seed=1
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_a_stream_says_the_same_as_the_whole(client: openai.OpenAI, server: Server) -> None:
    asked: dict[str, Any] = {"response_format": schema_format(SCHEMAS[NAMES[0]]), "logprobs": True}
    whole = ask(client, server, **asked).choices[0]
    chunks = list(ask(client, server, stream=True, **asked))
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == whole.message.content
    num_logprobs = sum(len(c.logprobs.content) for chunk in chunks for c in chunk.choices if c.logprobs)
    assert num_logprobs == len(whole.logprobs.content)


def test_seeds_and_penalties_go_along(client: openai.OpenAI, server: Server) -> None:
    asked: dict[str, Any] = {
        "response_format": schema_format(SCHEMAS[NAMES[0]]),
        "frequency_penalty": 1.0,
        "extra_body": {"min_tokens": 5, "top_k": 40, "repetition_penalty": 1.1, "ignore_eos": True},
    }
    texts = {ask(client, server, **asked).choices[0].message.content for _ in range(2)}
    assert len(texts) == 1
    jsonschema.validate(json.loads(texts.pop()), SCHEMAS[NAMES[0]])


def test_an_object_of_any_kind(client: openai.OpenAI, server: Server) -> None:
    answer = ask(client, server, response_format={"type": "json_object"}, max_tokens=1000, temperature=0)
    content = answer.choices[0].message.content
    assert content.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(content), dict)


@pytest.mark.parametrize("route", ["chat", "completions"])
@pytest.mark.parametrize("form", ["structured_outputs", "guided"])
def test_vllms_parameters(client: openai.OpenAI, server: Server, form: str, route: str) -> None:
    rules = 'root ::= "SELECT " column " FROM t"\ncolumn ::= "a" | "b"'
    wanted: dict[str, tuple[Any, str]] = {
        "regex": (r"\d{3}-[a-f]{2}", r"\d{3}-[a-f]{2}"),
        "choice": (["yes", "no"], "yes|no"),
        "grammar": (rules, "SELECT (a|b) FROM t"),
        "json": ({"type": "integer", "minimum": 0, "maximum": 9}, "[0-9]"),
    }
    for name, (value, pattern) in wanted.items():
        extra = {form: {name: value}} if form == "structured_outputs" else {f"guided_{name}": value}
        if route == "chat":
            text = ask(client, server, extra_body=extra, max_tokens=40).choices[0].message.content
        else:
            completion = client.completions.create(
                model=server.model, prompt="One two", max_tokens=40, seed=1, extra_body=extra
            )
            text = completion.choices[0].text
        assert re.fullmatch(pattern, text), (name, text)


def test_an_unsupported_keyword_is_named(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, server, response_format=schema_format({"type": "array", "uniqueItems": True}))
    assert caught.value.param == "response_format.json_schema.schema"
    assert caught.value.code == "invalid_grammar"
    assert '"uniqueItems"' in caught.value.message


def test_rows_of_a_batch(client: openai.OpenAI, server: Server) -> None:
    good, bad = schema_format(SCHEMAS[NAMES[0]]), schema_format({"uniqueItems": True})
    rows = [
        {
            "custom_id": f"{i}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": HELLO, "max_tokens": 300, "response_format": form},
        }
        for i, form in enumerate([good, bad, good])
    ]
    content = "\n".join(map(json.dumps, rows)).encode()
    file = client.files.create(file=("rows.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    deadline = time.monotonic() + 60
    while batch.status != "completed":
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    lines = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert sorted(line["custom_id"] for line in lines) == ["0", "2"]
    for line in lines:
        text = line["response"]["body"]["choices"][0]["message"]["content"]
        jsonschema.validate(json.loads(text), SCHEMAS[NAMES[0]])
    refused = json.loads(client.files.content(batch.error_file_id).text)
    assert refused["response"]["body"]["error"]["code"] == "invalid_grammar"


def test_a_deeply_nested_schema_is_refused(server: Server) -> None:
    depth = 20_000
    schema = '{"items":' * depth + "{}" + "}" * depth
    body = '{"messages":[{"role":"user","content":"a"}],"guided_json":' + schema + "}"
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    response = httpx.post(f"{server.url}/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 400
    assert server.health() == 200
