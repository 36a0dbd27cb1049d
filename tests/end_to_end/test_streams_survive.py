"""kill -9 of the engine, or a stop of it, while streams run: their clients see a pause, and nothing else.

In float32: in bfloat16 a token depends, in near-ties, on the step that it was computed in. `make test-resume` has more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from fakes.eventually import eventually
from fakes.served import Server, serving, serving_fake
from fakes.sse_reader import parse_events

NUM_KILLS = int(os.environ.get("HOCKET_TEST_RESUMES", "3"))
KILLS_PER_SERVER = 4  # which waits the longer before it starts an engine, the more often that dies
HELLO = [{"role": "user", "content": "Tell me a long story about the sea."}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MENU = {
    "type": "object",
    "properties": {
        "dishes": {
            "type": "array",
            "minItems": 6,
            "maxItems": 8,
            "items": {"type": "string", "minLength": 5, "maxLength": 12},
        }
    },
    "required": ["dishes"],
    "additionalProperties": False,
}
CALL = {"type": "function", "function": {"name": "order", "parameters": MENU}}
NUM_TOKENS = 160
NUM_CHOICES = 20  # each is a request to the engine
GREEDY: dict[str, Any] = {"temperature": 0}

REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {**GREEDY, "logprobs": True, "top_logprobs": 3}),
    (CHAT, {"seed": 1}),
    (CHAT, {"seed": 2, "temperature": 0.8, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "logprobs": True}),
    (CHAT, {**GREEDY, "repetition_penalty": 1.3}),
    (CHAT, {**GREEDY, "presence_penalty": 1.5, "frequency_penalty": 0.7}),
    (CHAT, {"seed": 3, "frequency_penalty": 1.1, "n": 2}),
    (CHAT, {"seed": 4, "stop": ["zq", "qzq"], "min_tokens": 100}),
    (CHAT, {"seed": 5, "response_format": {"type": "json_schema", "json_schema": {"name": "menu", "schema": MENU}}}),
    (CHAT, {"seed": 6, "tools": [CALL], "tool_choice": {"type": "function", "function": {"name": "order"}}}),
    (CHAT, {"seed": 7, "logit_bias": {"5": -100, "9": 3}, "bad_words": ["the"]}),
    (COMPLETIONS, {"prompt": "Once upon a time", "seed": 8, "logprobs": 2}),
    (COMPLETIONS, {"prompt": ["One", "Two"], "seed": 9, "n": 2}),
    (COMPLETIONS, {"prompt": "Once", "seed": 10, "echo": True, "logprobs": 1}),
    (CHAT, {"seed": 11, "service_tier": "flex"}),
]


def body(path: str, fields: dict[str, Any], *, streams: bool) -> dict[str, Any]:
    rest = {"messages": HELLO} if path == CHAT else {}
    shown = {"stream": True, "stream_options": {"include_usage": True}} if streams else {}
    return {"max_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True, **rest, **shown, **fields}


async def answer(session: aiohttp.ClientSession, path: str, fields: dict[str, Any], *, streams: bool) -> dict[str, Any]:
    """What a client makes of it: by choice, its text, tokens, log-probabilities and end; and the usage."""
    async with session.post(path, json=body(path, fields, streams=streams)) as response:
        assert response.status == 200, await response.text()
        if streams:
            events = [event for event in parse_events(await response.text()) if not str(event).startswith(":")]
            *chunks, end = events
            assert end == "[DONE]", end
        else:
            chunks = [await response.json()]
    found: dict[str, Any] = {}
    for chunk in chunks:
        assert "error" not in chunk, chunk
        if chunk.get("usage"):
            found["usage"] = {name: value for name, value in chunk["usage"].items() if isinstance(value, int)}
        for choice in chunk["choices"]:
            add(found.setdefault(choice["index"], {"text": "", "tokens": [], "logprobs": [], "calls": ""}), choice)
    return found


def add(of: dict[str, Any], choice: dict[str, Any]) -> None:
    message = choice.get("delta") or choice.get("message") or {}
    of["text"] += choice.get("text") or message.get("content") or ""
    of["calls"] += "".join(call["function"].get("arguments") or "" for call in message.get("tool_calls") or ())
    of["tokens"] += choice.get("token_ids") or []
    logprobs = choice.get("logprobs") or {}
    of["logprobs"] += [entry["logprob"] for entry in logprobs.get("content") or ()]
    of["logprobs"] += [value for value in logprobs.get("token_logprobs") or () if value is not None]
    of["end"] = choice.get("finish_reason") or of.get("end")


async def answers(session: aiohttp.ClientSession) -> list[dict[str, Any]]:
    """Of all requests, and of two of them in one piece, at once."""
    asked = [answer(session, path, fields, streams=True) for path, fields in REQUESTS]
    asked += [answer(session, path, fields, streams=False) for path, fields in REQUESTS[:2]]
    return list(await asyncio.gather(*asked))


def compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    assert found["usage"] == expected["usage"]
    for index in found.keys() - {"usage"}:
        one, other = found[index], expected[index]
        assert one["tokens"] == other["tokens"], "a token is missing, or there twice"
        assert (one["text"], one["calls"], one["end"]) == (other["text"], other["calls"], other["end"])
        assert one["logprobs"] == pytest.approx(other["logprobs"], abs=1e-3)


@contextlib.contextmanager
def surviving(folder: Path, *arguments: str) -> Iterator[Server]:
    with serving(folder, "--dtype", "float32", "--max-engine-restarts", "100", *arguments) as server:
        yield server


def sessions(server: Server) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=0))


async def cut(server: Server, session: aiohttp.ClientSession, at: float, how: str = "kill") -> list[dict[str, Any]]:
    """The answers, with the engine killed, or stopped, when that part of their tokens is there."""
    num_before = server.metric("hocket_output_tokens_total")
    asked = asyncio.create_task(answers(session))
    needed = num_before + at * 10 * NUM_TOKENS
    await eventually(lambda: server.metric("hocket_output_tokens_total") >= needed, seconds=120)
    getattr(server.engine, how)()
    return await asked


async def test_every_answer_is_that_of_an_undisturbed_run(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    moments = random.Random(seed)
    for first in range(0, NUM_KILLS, KILLS_PER_SERVER):
        num_kills = min(KILLS_PER_SERVER, NUM_KILLS - first)
        with surviving(tmp_path) as server:
            async with sessions(server) as session:
                expected = await answers(session)
                for _ in range(num_kills):
                    found = await cut(server, session, moments.uniform(0.0, 0.7))
                    for one, other in zip(found, expected, strict=True):
                        compare(one, other)
            assert server.metric("hocket_engine_restarts_total") == num_kills, f"seed {seed}"
            num_resumed = server.metric("hocket_resumed_requests_total", cause="died")
            assert num_kills <= num_resumed <= num_kills * NUM_CHOICES
            assert server.metric("hocket_resume_seconds_count") == num_resumed
            assert "Traceback" not in server.log()


async def test_a_hung_engine_is_killed_and_its_streams_go_on(tmp_path: Path) -> None:
    with surviving(tmp_path, "--engine-timeout-ms", "1500") as server:
        async with sessions(server) as session:
            expected = await answers(session)
            first = server.engine
            for found, whole in zip(await cut(server, session, 0.3, "suspend"), expected, strict=True):
                compare(found, whole)
        assert not first.is_running()
        assert server.metric("hocket_resumed_requests_total", cause="hung") > 0
        assert server.metric("hocket_resumed_requests_total", cause="died") == 0


async def test_an_engine_that_is_terminated_is_no_end_either(tmp_path: Path) -> None:
    with surviving(tmp_path) as server:
        async with sessions(server) as session:
            expected = await answers(session)
            for found, whole in zip(await cut(server, session, 0.3, "terminate"), expected, strict=True):
                compare(found, whole)
        assert server.metric("hocket_resumed_requests_total", cause="died") > 0


async def test_poison_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake engine dies of one prompt; whoever was there beside it goes on, however often it dies."""
    monkeypatch.setenv("FAKE_WORKER_MODE", "mortal")
    monkeypatch.setenv("FAKE_WORKER_STEP_MS", "5")
    with serving_fake(tmp_path) as server:
        url = f"{server.url}{COMPLETIONS}"
        texts = [f"innocent {i}" for i in range(6)]
        async with aiohttp.ClientSession() as session:
            asked = {"max_tokens": 400, "ignore_eos": True, "stream": True}
            streams = [await session.post(url, json={"prompt": text, **asked}) for text in texts]
            for stream in streams:
                await stream.content.readuntil(b"\n\n")
            guilty = await session.post(url, json={"prompt": "poison", "max_tokens": 5})
            error = (await guilty.json())["error"]
            assert (guilty.status, error["type"], error["code"]) == (400, "invalid_request_error", "poison_request")
            assert error["message"] == "This request was running when the engine died twice."
            for text, stream in zip(texts, streams, strict=True):
                events = parse_events(await stream.text())
                assert events[-1] == "[DONE]", (text, events[-1])
                assert "error" not in json.dumps(events)
        assert server.metric("hocket_engine_restarts_total") == 2
        assert server.health() == 200


async def test_when_no_engine_comes_back_streams_end_with_what_killed_it(tmp_path: Path) -> None:
    with serving_fake(tmp_path, "--max-engine-restarts", "0") as server:
        async with aiohttp.ClientSession() as session:
            asked = {"prompt": "on and on", "max_tokens": 4000, "ignore_eos": True, "stream": True}
            stream = await session.post(f"{server.url}{COMPLETIONS}", json=asked)
            await stream.content.readuntil(b"\n\n")
            psutil.Process(server.engine.pid).kill()
            assert parse_events(await stream.text())[-1]["error"]["code"] == "engine_dead"
