"""`POST /v1/chat/completions` over a fake engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fakes.byte_tokenizer import END
from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine, saying
from fakes.sse_reader import events_by_step, stream_events
from schedcore.api.types import RequestClass, Targets

HELLO = [{"role": "user", "content": "Hello"}]


async def chat(client: Any, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/chat/completions", json={"messages": HELLO, **fields})
    assert response.status == 200, await response.text()
    return await response.json()


async def chunks(client: Any, **fields: Any) -> list[Any]:
    return await stream_events(client, "/v1/chat/completions", **fields)


def contents(events: list[Any], index: int = 0) -> str:
    choices = [choice for event in events if event != "[DONE]" for choice in event["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices if choice["index"] == index)


async def test_answer_has_openai_shape(serve: Any) -> None:
    body = await chat(await serve(FakeEngine(saying("Hi there"))), model="demo")
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "demo"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi there", "refusal": None},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ]
    assert body["usage"]["completion_tokens"] == len("Hi there") + 1
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_template_is_applied(serve: Any) -> None:
    engine = FakeEngine()
    await chat(await serve(engine), messages=[{"role": "system", "content": "Be brief."}, *HELLO])
    assert engine.requests[0].prompt_token_ids == [259, *b"Be brief.", END, 257, *b"Hello", END, 258]


async def test_content_may_be_a_list_of_texts(serve: Any) -> None:
    engine = FakeEngine()
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await chat(await serve(engine), messages=[{"role": "user", "content": parts}])
    assert bytes(i for i in engine.requests[0].prompt_token_ids if i < 256) == b"one\ntwo"


async def test_stream_is_role_then_content_then_finish_then_done(serve: Any) -> None:
    events = await chunks(await serve(FakeEngine(saying("Hé!"))), messages=HELLO)
    assert events.pop() == "[DONE]"
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta["content"] for delta in deltas[1:-1]) == "Hé!"
    assert all(delta["content"] for delta in deltas[1:-1])
    assert deltas[-1] == {}
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["stop"]
    assert len({event["id"] for event in events}) == 1
    assert all("usage" not in event for event in events)


async def test_half_a_character_is_a_chunk_without_content(serve: Any) -> None:
    engine = FakeEngine(saying("\u00e9\u00e9"), is_manual=True)
    client = await serve(engine)
    role, *events = await events_by_step(client, engine, "/v1/chat/completions", 4, messages=HELLO)
    assert (
        role["choices"][0]["delta"]["role"] == "assistant"
    )  # it comes with the first chunk, which is half a character
    assert [event["choices"][0]["delta"] for event in events] == [{"content": text} for text in ("", "\u00e9", "")]


async def test_stream_with_usage_ends_with_it(serve: Any) -> None:
    events = await chunks(await serve(FakeEngine()), messages=HELLO, stream_options={"include_usage": True})
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == len("Hello") + 1
    assert all(event["usage"] is None for event in events[:-2])


async def test_continuous_usage_grows(serve: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await chunks(await serve(FakeEngine()), messages=HELLO, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == len("Hello") + 1


@pytest.mark.parametrize("stream", [False, True])
async def test_n_choices(serve: Any, stream: bool) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    if stream:
        events = await chunks(client, messages=HELLO, n=3, seed=5)
        texts = [contents(events, index) for index in range(3)]
    else:
        texts = [choice["message"]["content"] for choice in (await chat(client, n=3, seed=5))["choices"]]
    assert texts == ["Hello"] * 3
    assert [request.sampling.seed for request in engine.requests] == [5, 6, 7]


async def test_prompt_counts_once_for_n_choices(serve: Any) -> None:
    client = await serve(FakeEngine())
    one, three = await chat(client), await chat(client, n=3)
    assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert three["usage"]["completion_tokens"] == 3 * one["usage"]["completion_tokens"]


@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
@pytest.mark.parametrize(
    ("stop", "extra", "text"),
    [
        ("lo w", {}, "Hel"),
        (["xyz", " wor"], {}, "Hello"),
        ("lo w", {"include_stop_str_in_output": True}, "Hello w"),
        ("He", {"min_tokens": 3}, "Hello world"),
        ("worlds", {}, "Hello world"),
    ],
)
async def test_stop_string(serve: Any, tokens_per_step: int, stop: Any, extra: dict[str, Any], text: str) -> None:
    engine = FakeEngine(saying("Hello world"), tokens_per_step=tokens_per_step)
    client = await serve(engine)
    body = await chat(client, stop=stop, **extra)
    assert body["choices"][0]["message"]["content"] == text
    assert body["choices"][0]["finish_reason"] == "stop"
    assert contents(await chunks(client, messages=HELLO, stop=stop, **extra)) == text
    assert engine.num_open == 0


async def test_stop_string_ends_the_engines_work(serve: Any) -> None:
    engine = FakeEngine(saying("one two three"))
    body = await chat(await serve(engine), stop=" two")
    assert engine.aborted == [engine.requests[0].request_id]
    assert body["usage"]["completion_tokens"] == len("one two")


async def test_max_tokens(serve: Any) -> None:
    client = await serve(FakeEngine(saying("Hello world")))
    for name in ("max_tokens", "max_completion_tokens"):
        choice = (await chat(client, **{name: 5}))["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello", "length")


async def test_without_max_tokens_the_context_is_the_limit(serve: Any) -> None:
    engine = FakeEngine()
    await chat(await serve(engine))
    request = engine.requests[0]
    assert request.max_tokens == 4096 - len(request.prompt_token_ids)


async def test_logprobs(serve: Any) -> None:
    body = await chat(await serve(FakeEngine(saying("é"))), logprobs=True, top_logprobs=2)
    entries = body["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in entries[:2]] == [[0xC3], [0xA9]]
    assert entries[0]["logprob"] == -0.25
    assert [top["logprob"] for top in entries[0]["top_logprobs"]] == [-0.25, -1.25]
    assert len(entries) == body["usage"]["completion_tokens"]


async def test_streamed_logprobs_are_complete_although_text_is_held_back(serve: Any) -> None:
    client = await serve(FakeEngine(saying("aéb")))
    events = await chunks(client, messages=HELLO, logprobs=True, top_logprobs=0)
    entries = [e for event in events[:-1] for e in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert [bytes(entry["bytes"]) for entry in entries] == [b"a", b"\xc3", b"\xa9", b"b", b"<|end|>"]
    assert contents(events) == "aéb"


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_on_request(serve: Any, stream: bool) -> None:
    engine = FakeEngine(saying("Hi"))
    client = await serve(engine)
    if stream:
        events = await chunks(client, messages=HELLO, return_token_ids=True)
        assert events[0]["prompt_token_ids"] == engine.requests[0].prompt_token_ids
        token_ids = [i for event in events[:-1] for i in event["choices"][0].get("token_ids", [])]
    else:
        body = await chat(client, return_token_ids=True)
        assert body["prompt_token_ids"] == engine.requests[0].prompt_token_ids
        token_ids = body["choices"][0]["token_ids"]
    assert token_ids == [*b"Hi", END]


async def test_special_tokens_show_on_request_only(serve: Any) -> None:
    client = await serve(FakeEngine(lambda request: [*b"a", 257, *b"b", END]))
    assert (await chat(client))["choices"][0]["message"]["content"] == "ab"
    shown = await chat(client, skip_special_tokens=False)
    assert shown["choices"][0]["message"]["content"] == "a<|user|>b"


async def test_parameters_reach_the_engine(serve: Any) -> None:
    engine = FakeEngine()
    await chat(
        await serve(engine, ttft_target_ms=500.0, itl_target_ms=90.0),
        itl_target_ms=60,
        tpot_target_ms=40.5,
        temperature=0,
        top_p=0.5,
        top_k=-1,
        min_p=0.1,
        repetition_penalty=1.5,
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={"65": -100},
        seed=-1,
        ignore_eos=True,
        min_tokens=2,
        max_tokens=3,
        stop_token_ids=[10],
        prompt_cache_key="session",
        cache_salt="salt",
        service_tier="priority",
    )
    request = engine.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 0.5, 0, 0.1)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.5, 1, -1)
    assert (sampling.logit_bias, sampling.seed, sampling.num_logprobs) == ({65: -100.0}, 2**63 - 1, None)
    assert (request.min_tokens, request.max_tokens, request.stop_token_ids) == (2, 3, [10])
    assert (request.session_id, request.cache_salt, request.priority) == ("session", "salt", -1)
    assert (request.request_class, request.targets) == (RequestClass.ONLINE, Targets(500.0, 60.0, 40.5))
    assert request.age_ms >= 0


async def test_flex_is_offline_and_echoed(serve: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine, ttft_target_ms=500.0)
    assert (await chat(client, service_tier="flex"))["service_tier"] == "flex"
    assert (await chat(client, service_tier="auto"))["service_tier"] == "default"
    assert "service_tier" not in await chat(client)
    assert [request.request_class for request in engine.requests] == [
        RequestClass.OFFLINE,
        RequestClass.ONLINE,
        RequestClass.ONLINE,
    ]
    assert [request.targets for request in engine.requests] == [Targets(), Targets(500.0), Targets(500.0)]


@pytest.mark.parametrize("name", ["ttft_target_ms", "itl_target_ms", "tpot_target_ms"])
@pytest.mark.parametrize("value", [0, -1, "soon", True, 86_400_001, [1]])
async def test_a_target_that_makes_no_sense_is_refused_by_name(serve: Any, name: str, value: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    for path, prompt in (("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "a"})):
        response = await client.post(path, json={**prompt, name: value})
        assert response.status == 400
        error = (await response.json())["error"]
        assert (error["param"], error["code"]) == (name, "invalid_value")
        assert name in error["message"]
    assert not engine.requests


async def test_an_api_keys_targets_are_those_of_its_requests(serve: Any) -> None:
    engine = FakeEngine()
    keys = {"api_keys": ("one", "two"), "api_key_targets": ("two:ttft=300,tpot=20",)}
    client = await serve(engine, ttft_target_ms=500.0, **keys)
    for key, fields in (("one", {}), ("two", {}), ("two", {"tpot_target_ms": 30})):
        headers = {"Authorization": f"Bearer {key}"}
        body = {"messages": HELLO, **fields}
        assert (await client.post("/v1/chat/completions", json=body, headers=headers)).status == 200
    wanted = [Targets(500.0), Targets(300.0, None, 20.0), Targets(300.0, None, 30.0)]
    assert [request.targets for request in engine.requests] == wanted


async def test_final_message_can_be_continued(serve: Any) -> None:
    engine = FakeEngine()
    messages = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    await chat(await serve(engine), messages=messages, continue_final_message=True)
    assert bytes(engine.requests[0].prompt_token_ids[-9:]) == b"Once upon"


async def test_model_without_template_says_so(serve: Any, without_template: Any) -> None:
    client = await serve(FakeEngine(), checkpoint=without_template)
    response = await client.post("/v1/chat/completions", json={"messages": HELLO})
    assert response.status == 400
    assert (await response.json())["error"]["code"] == "no_chat_template"


async def test_full_flex_queue_has_a_code_of_its_own_and_refuses_nobody_else(serve: Any) -> None:
    engine = FakeEngine(is_manual=True)
    client = await serve(engine, max_queue_requests=1)
    body = {"messages": [{"role": "user", "content": "Hi"}], "service_tier": "flex"}
    waiting = asyncio.create_task(client.post("/v1/chat/completions", json=body))
    await eventually(lambda: engine.num_open == 1)
    refused = await client.post("/v1/chat/completions", json=body)
    assert refused.status == 429
    assert (await refused.json())["error"]["code"] == "resource_unavailable"
    assert int(refused.headers["Retry-After"]) >= 1
    online = asyncio.create_task(client.post("/v1/chat/completions", json=body | {"service_tier": "default"}))
    await eventually(lambda: engine.num_open == 2)
    while engine.num_open:
        engine.step()
    assert [(await task).status for task in (waiting, online)] == [200, 200]


async def test_flex_may_take_longer(serve: Any) -> None:
    client = await serve(FakeEngine(is_manual=True), request_timeout_ms=3_600_000.0, flex_timeout_ms=10.0)
    body = {"messages": [{"role": "user", "content": "Hi"}], "service_tier": "flex"}
    assert (await client.post("/v1/chat/completions", json=body)).status == 504


@pytest.mark.parametrize("tokens_per_step", [1, 4])
async def test_continuous_usage_counts_what_was_sent(serve: Any, tokens_per_step: int) -> None:
    """However many tokens come together: a role is none, and each chunk counts its own text and what came before."""
    client = await serve(FakeEngine(saying("abcdefgh"), tokens_per_step=tokens_per_step))
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await chunks(client, messages=HELLO, n=3, stream_options=options)
    shown = 0
    for event in events[:-2]:
        [choice] = event["choices"]
        shown += len(choice["delta"].get("content", "")) + (choice["finish_reason"] is not None)
        assert event["usage"]["completion_tokens"] - shown in (0, 1)  # an end of sequence that came with the last text
    assert events[0]["usage"]["completion_tokens"] == 0
    assert events[-2]["usage"]["completion_tokens"] == 3 * len("abcdefgh.")
