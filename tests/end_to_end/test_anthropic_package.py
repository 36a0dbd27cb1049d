"""The unmodified `anthropic` package against the whole server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from fakes.served import Server

KEY = "test-key"
HELLO: list[Any] = [{"role": "user", "content": "Hello, how are you?"}]
GREEDY = {"temperature": 0}  # newer versions of the package have no parameter for it
SURE: dict[str, Any] = {"messages": HELLO, "max_tokens": 24, "extra_body": GREEDY}


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as made:
        yield made


def chat(server: Server, messages: list[Any], **more: Any) -> Any:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client:
        return client.chat.completions.create(
            model=server.model, messages=messages, temperature=0, max_tokens=24, **more
        )


def text(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message_says_what_a_chat_says(client: anthropic.Anthropic, server: Server) -> None:
    message = client.messages.create(model=server.model, **SURE)
    same = chat(server, HELLO)
    assert text(message) == same.choices[0].message.content
    assert (message.type, message.role, message.model) == ("message", "assistant", server.model)
    assert message.stop_reason == {"stop": "end_turn", "length": "max_tokens"}[same.choices[0].finish_reason]
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == same.usage.prompt_tokens
    assert usage.output_tokens == same.usage.completion_tokens


def test_the_stream_says_the_same(client: anthropic.Anthropic, server: Server) -> None:
    whole = client.messages.create(model=server.model, **SURE)
    events = list(client.messages.create(model=server.model, stream=True, **SURE))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert events[0].message.usage.output_tokens == 0
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    with client.messages.stream(model=server.model, **SURE) as stream:
        assert "".join(stream.text_stream) == text(whole)
        final = stream.get_final_message()
    assert (final.stop_reason, text(final)) == (whole.stop_reason, text(whole))
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_system_and_blocks_are_messages(client: anthropic.Anthropic, server: Server) -> None:
    blocks: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": "Hello!"},
        *HELLO,
    ]
    message = client.messages.create(
        model=server.model,
        max_tokens=24,
        extra_body=GREEDY,
        messages=blocks,
        system=[{"type": "text", "text": "Be kind."}],
    )
    same = chat(
        server,
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello!"},
            *HELLO,
        ],
    )
    assert text(message) == same.choices[0].message.content


def test_the_stop_sequence_is_named(client: anthropic.Anthropic, server: Server) -> None:
    whole = text(client.messages.create(model=server.model, **SURE))
    stop = whole[3:5]
    message = client.messages.create(model=server.model, stop_sequences=["never", stop], **SURE)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert text(message) == whole[: whole.index(stop)]


def test_an_answer_may_have_a_form(client: anthropic.Anthropic, server: Server) -> None:
    schema = {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"]}
    form = {"format": {"type": "json_schema", "schema": schema | {"additionalProperties": False}}}
    message = client.messages.create(
        model=server.model, messages=HELLO, max_tokens=60, extra_body=GREEDY | {"output_config": form}
    )
    assert set(json.loads(text(message))) == {"sunny"}


def test_tokens_are_counted(client: anthropic.Anthropic, server: Server) -> None:
    counted = client.messages.count_tokens(model=server.model, messages=HELLO)
    assert counted.input_tokens == chat(server, HELLO).usage.prompt_tokens


def test_errors_are_the_packages_own(client: anthropic.Anthropic, server: Server) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        client.messages.create(model="claude", **SURE)
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(model=server.model, **SURE)
    image: Any = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
    with pytest.raises(anthropic.BadRequestError, match="this model reads text") as refused:
        client.messages.create(model=server.model, max_tokens=4, messages=image)
    body: Any = refused.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")


def test_a_request_needs_a_limit(server: Server) -> None:
    data = json.dumps({"model": server.model, "messages": HELLO}).encode()
    headers = {"x-api-key": KEY, "content-type": "application/json"}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(f"{server.url}/v1/messages", data, headers))
    assert json.load(refused.value)["error"]["message"] == "Missing required parameter: 'max_tokens'."
