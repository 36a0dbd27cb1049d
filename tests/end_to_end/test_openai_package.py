"""The unmodified `openai` package against the whole server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from fakes.served import Server

KEY = "test-key"
HELLO: list[Any] = [{"role": "user", "content": "Hello, how are you?"}]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_models(client: openai.OpenAI, server: Server) -> None:
    models = list(client.models.list())
    assert [model.id for model in models] == [server.model]
    assert client.models.retrieve(server.model).object == "model"


def test_chat(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(model=server.model, messages=HELLO, temperature=0, max_tokens=30)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer._request_id


def test_streamed_chat_says_the_same(client: openai.OpenAI, server: Server) -> None:
    parameters: dict[str, Any] = {"model": server.model, "messages": HELLO, "temperature": 0, "max_tokens": 30}
    whole = client.chat.completions.create(**parameters)
    stream = client.chat.completions.create(**parameters, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completions_stream_says_the_same(client: openai.OpenAI, server: Server) -> None:
    parameters: dict[str, Any] = {"model": server.model, "prompt": "One two three", "temperature": 0, "max_tokens": 20}
    whole = client.completions.create(**parameters)
    chunks = list(client.completions.create(**parameters, stream=True))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert whole.choices[0].text


def test_several_prompts_and_token_ids(client: openai.OpenAI, server: Server) -> None:
    texts = client.completions.create(
        model=server.model, prompt=["Hello", "Good bye"], temperature=0, max_tokens=5, n=2
    )
    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    assert texts.choices[0].text == texts.choices[1].text
    ids = client.completions.create(model=server.model, prompt=[[65, 66], [67]], max_tokens=2)
    assert len(ids.choices) == 2
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 3


def test_echo_and_logprobs_of_completions(client: openai.OpenAI, server: Server) -> None:
    answer = client.completions.create(
        model=server.model, prompt="Hello there", echo=True, logprobs=3, max_tokens=4, temperature=0
    )
    choice = answer.choices[0]
    assert choice.text.startswith("Hello there")
    logprobs = choice.logprobs
    assert logprobs is not None
    assert answer.usage is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert len(logprobs.tokens) == answer.usage.total_tokens
    assert logprobs.token_logprobs[0] is None
    assert all(logprob <= 0 for logprob in logprobs.token_logprobs[1:])


def test_chat_logprobs(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(
        model=server.model, messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=5, temperature=0
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert answer.usage is not None
    assert len(logprobs.content) == answer.usage.completion_tokens
    for entry in logprobs.content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)  # greedy takes the likeliest


def test_n(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(model=server.model, messages=HELLO, n=3, max_tokens=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def test_stop(client: openai.OpenAI, server: Server) -> None:
    parameters: dict[str, Any] = {"model": server.model, "messages": HELLO, "temperature": 0, "max_tokens": 30}
    whole = client.chat.completions.create(**parameters).choices[0].message.content
    assert whole is not None
    assert len(whole) > 4
    stop = whole[2:4]
    choice = client.chat.completions.create(**parameters, stop=[stop]).choices[0]
    assert choice.message.content == whole[: whole.index(stop)]
    assert choice.finish_reason == "stop"


def test_seed_repeats(client: openai.OpenAI, server: Server) -> None:
    answers = [
        client.chat.completions.create(model=server.model, messages=HELLO, seed=11, temperature=1, max_tokens=20)
        for _ in range(2)
    ]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


def test_service_tier_is_echoed(client: openai.OpenAI, server: Server) -> None:
    for asked, used in (("auto", "default"), ("flex", "flex"), ("priority", "priority")):
        tier: Any = asked
        answer = client.chat.completions.create(
            model=server.model, messages=HELLO, max_tokens=2, service_tier=tier, user="me", prompt_cache_key="talk"
        )
        assert answer.service_tier == used


def test_errors_are_the_packages_own(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-5", messages=HELLO)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as negative:
        client.chat.completions.create(model=server.model, messages=HELLO, max_tokens=-1)
    assert negative.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=server.model, prompt="word " * 100_000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError) as wrong:
        client.with_options(api_key="wrong").models.list()
    assert wrong.value.code == "invalid_api_key"


async def test_many_streams_at_once(server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:

        async def one() -> str:
            stream = await client.chat.completions.create(
                model=server.model, messages=HELLO, stream=True, temperature=0, max_tokens=20
            )
            return "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])

        answers = await asyncio.gather(*(one() for _ in range(32)))
    assert len(set(answers)) == 1
    assert answers[0]
