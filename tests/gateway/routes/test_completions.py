"""`POST /v1/completions` over a fake engine."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fakes.byte_tokenizer import END, byte_tokenizer
from fakes.fake_engine import FakeEngine, saying
from fakes.sse_reader import events_by_step, stream_events
from gateway.answers.logprobs import CompletionLogprobsWriter
from gateway.model.tokenize import Tokenizer
from schedcore.api.types import TokenLogprobs


async def complete(client: Any, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/completions", json=fields)
    assert response.status == 200, await response.text()
    return await response.json()


async def chunks(client: Any, **fields: Any) -> list[Any]:
    return await stream_events(client, "/v1/completions", **fields)


async def test_answer_has_openai_shape(serve: Any) -> None:
    body = await complete(await serve(FakeEngine(saying("Hi"))), model="demo", prompt="Hello")
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [{"index": 0, "text": "Hi", "finish_reason": "stop", "logprobs": None}]
    assert body["usage"]["prompt_tokens"] == 5
    assert body["usage"]["completion_tokens"] == 3


async def test_default_is_sixteen_tokens(serve: Any) -> None:
    engine = FakeEngine(saying("x" * 100))
    assert (await complete(await serve(engine), prompt="a"))["choices"][0]["text"] == "x" * 16


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["ab", "cd"], ["ab", "cd"]),
        ([97, 98], ["ab"]),
        ([[97, 98], [99]], ["ab", "c"]),
    ],
)
async def test_prompt_is_text_or_token_ids_or_a_list_of_either(serve: Any, prompt: Any, texts: list[str]) -> None:
    body = await complete(await serve(FakeEngine()), prompt=prompt)
    assert [choice["text"] for choice in body["choices"]] == texts
    assert body["usage"]["prompt_tokens"] == sum(map(len, texts))


async def test_choices_are_ordered_by_prompt_then_n(serve: Any) -> None:
    body = await complete(await serve(FakeEngine()), prompt=["a", "b"], n=2)
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == list(enumerate("aabb"))


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}])
async def test_half_a_character_is_a_chunk_without_text(serve: Any, options: dict[str, Any]) -> None:
    """Who counts chunks counts tokens, and times between chunks are those between tokens."""
    engine = FakeEngine(saying("a\u4e16b"), is_manual=True)
    events = await events_by_step(await serve(engine), engine, "/v1/completions", 5, prompt="a", **options)
    assert [event["choices"][0]["text"] for event in events] == ["a", "", "", "\u4e16", "b"]


async def test_streamed_choices_carry_their_index(serve: Any) -> None:
    events = await chunks(await serve(FakeEngine()), prompt=["ab", "cd"], n=2)
    assert events.pop() == "[DONE]"
    choices = [choice for event in events for choice in event["choices"]]
    for index, text in enumerate(["ab", "ab", "cd", "cd"]):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == text
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]


@pytest.mark.parametrize("prompt", ["ab", [97, 98]])
async def test_echo(serve: Any, prompt: Any) -> None:
    client = await serve(FakeEngine(saying("!")))
    assert (await complete(client, prompt=prompt, echo=True))["choices"][0]["text"] == "ab!"
    events = await chunks(client, prompt=prompt, echo=True)
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["ab", "!", ""]


async def test_echo_of_token_ids_shows_special_tokens(serve: Any) -> None:
    """As an echo of text that holds them does."""
    client = await serve(FakeEngine(saying("!")))
    body = await complete(client, prompt=[257, 97], echo=True, logprobs=0)
    assert body["choices"][0]["text"] == "<|user|>a!"
    assert "".join(body["choices"][0]["logprobs"]["tokens"][:3]) == "<|user|>a!"
    assert body["choices"][0]["logprobs"]["text_offset"][:3] == [0, 8, 9]
    events = await chunks(client, prompt=[257, 97], echo=True)
    assert events[0]["choices"][0]["text"] == "<|user|>a"


async def test_logprobs(serve: Any) -> None:
    body = await complete(await serve(FakeEngine(saying("hé"))), prompt="x", logprobs=2)
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["h", "\ufffd", "\ufffd", "<|end|>"]
    assert logprobs["token_logprobs"] == [-0.25] * 4
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    assert logprobs["top_logprobs"][0] == {"h": -0.25, "i": -1.25}


def test_logprobs_name_the_sampled_token_first() -> None:
    sampled = TokenLogprobs(ord("h"), -1.5, 2, [(ord("i"), -0.5), (ord("h"), -1.5), (ord("j"), -2.0)])
    (top,) = CompletionLogprobsWriter(Tokenizer(byte_tokenizer()), 3).output([sampled]).top_logprobs
    assert list(msgspec.json.decode(top).items()) == [("h", -1.5), ("i", -0.5), ("j", -2.0)]


async def test_tokens_are_shown_as_ids_where_the_server_was_started_so(serve: Any) -> None:
    client = await serve(FakeEngine(saying("h")), return_tokens_as_token_ids=True)
    body = await complete(client, prompt="x", logprobs=0)
    assert all(token.startswith("token_id:") for token in body["choices"][0]["logprobs"]["tokens"])
    body = await complete(client, prompt="x", logprobs=0, return_tokens_as_token_ids=False)
    assert body["choices"][0]["logprobs"]["tokens"][0] == "h"


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
async def test_every_stream_tells_its_usage_where_the_server_was_started_so(serve: Any, options: Any) -> None:
    client = await serve(FakeEngine(saying("hi")), enable_force_include_usage=True)
    *events, done = await chunks(client, prompt="x", **options)
    assert all(event["usage"] for event in events)
    assert (events[-1]["choices"], done) == ([], "[DONE]")


async def test_logprobs_of_the_sampled_token_alone(serve: Any) -> None:
    body = await complete(await serve(FakeEngine(saying("h"))), prompt="x", logprobs=0)
    logprobs = body["choices"][0]["logprobs"]
    own = [{token: logprob} for token, logprob in zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)]
    assert logprobs["top_logprobs"] == own
    assert body["choices"][0]["logprobs"]["token_logprobs"] == [-0.25, -0.25]


async def test_echo_with_logprobs_covers_the_prompt(serve: Any) -> None:
    client = await serve(FakeEngine(saying("cd")))
    body = await complete(client, prompt="ab", echo=True, logprobs=1, max_tokens=2)
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "c", "d"]
    assert logprobs["token_logprobs"] == [None, -0.25, -0.25, -0.25]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"] == [0, 1, 2, 3]

    events = await chunks(client, prompt="ab", echo=True, logprobs=1, max_tokens=2)
    streamed = [event["choices"][0]["logprobs"] for event in events[:-2]]
    assert [token for part in streamed for token in part["tokens"]] == logprobs["tokens"]
    assert [offset for part in streamed for offset in part["text_offset"]] == logprobs["text_offset"]


async def test_echo_alone_scores_the_prompt(serve: Any) -> None:
    """As evaluation harnesses ask for it."""
    body = await complete(await serve(FakeEngine()), prompt="ab", echo=True, logprobs=1, max_tokens=0)
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["tokens"] == ["a", "b"]
    assert body["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_on_request(serve: Any, stream: bool) -> None:
    client = await serve(FakeEngine(saying("Hi")))
    if stream:
        events = await chunks(client, prompt=["a", "b"], return_token_ids=True)
        choices = [choice for event in events[:-1] for choice in event["choices"] if choice["index"] == 1]
        assert choices[0]["prompt_token_ids"] == [98]
        assert [i for choice in choices for i in choice.get("token_ids", [])] == [*b"Hi", END]
    else:
        choice = (await complete(client, prompt=["a", "b"], return_token_ids=True))["choices"][1]
        assert (choice["prompt_token_ids"], choice["token_ids"]) == ([98], [*b"Hi", END])


async def test_best_of_as_many_as_n_is_accepted(serve: Any) -> None:
    assert len((await complete(await serve(FakeEngine()), prompt="a", n=2, best_of=2))["choices"]) == 2


async def test_usage_of_a_stream(serve: Any) -> None:
    events = await chunks(await serve(FakeEngine()), prompt="abc", stream_options={"include_usage": True})
    assert events[-1] == "[DONE]"
    assert events[-2]["usage"]["total_tokens"] == 3 + 4


async def test_an_answer_with_too_many_logprobs_is_refused_unless_streamed(serve: Any) -> None:
    client = await serve(FakeEngine())
    body = {"prompt": ["a"] * 8, "n": 128, "max_tokens": 100, "logprobs": 5}
    response = await client.post("/v1/completions", json=body)
    assert response.status == 400
    assert (await response.json())["error"]["code"] == "answer_too_large"
    assert (await client.post("/v1/completions", json=body | {"logprobs": None})).status == 200
