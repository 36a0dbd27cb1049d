"""Whatever the gateway calls fails once, at its first call, its second, and so on: an error that says so, and no leak.

What gives back (leave, remove, end, close) and the clock are not among them: they are a few assignments, and nothing
could be given back if giving back failed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient

from fakes.eventually import eventually
from fakes.failing_call import FailingCall
from fakes.fake_engine import FakeEngine
from fakes.leak_check import assert_nothing_is_open
from gateway.answers.chat_chunks import ChatChunks
from gateway.engine.engine_client import EngineDeadError
from gateway.generation.choice import Choice
from gateway.metrics.histogram import Histogram
from gateway.model.detokenize import PieceDetokenizer
from gateway.model.tokenize import MAX_INLINE_CHARACTERS
from gateway.offline.checking.validation import Validator
from gateway.protocol.errors import QueueFullError
from gateway.services import SERVICES, Services

Client = TestClient[Any, Any]
Serve = Callable[..., Awaitable[Client]]
MakeError = Callable[[], Exception]

MAX_CALLS = 200  # that one run of a script makes of anything
HI = [{"role": "user", "content": "Hi"}]
LONG = "a word " * (MAX_INLINE_CHARACTERS // 4)
REQUESTS = [
    ("/v1/chat/completions", {"messages": HI, "session_id": "s", "max_tokens": 2}),
    ("/v1/advisories", {"session_id": "s", "event": "typing", "messages": HI, "draft": "Hello"}),
    ("/v1/chat/completions", {"messages": HI, "session_id": "s", "stream": True, "logprobs": True, "max_tokens": 3}),
    ("/v1/completions", {"prompt": ["ab", "c"], "n": 2, "max_tokens": 2}),
    ("/v1/advisories", {"session_id": "s", "event": "cancel"}),
    ("/tokenize", {"prompt": "ab", "return_token_strs": True}),
    ("/tokenize", {"prompt": LONG}),
    ("/tokenize", {"messages": HI}),
    ("/detokenize", {"tokens": [97, 98]}),
]


def broken() -> Exception:
    return RuntimeError("broken")


def no_descriptor() -> Exception:
    return OSError(24, "Too many open files")


def dead() -> Exception:
    return EngineDeadError("The engine was killed.")


def full() -> Exception:
    return QueueFullError("Too much text waits.", retry_after_seconds=1)


def late() -> Exception:
    return TimeoutError()


ONLINE: dict[str, tuple[Callable[[Services], Any], tuple[MakeError, ...]]] = {
    "engine.stream": (lambda services: services.serving.engine, (broken, no_descriptor, dead)),
    "engine.advise": (lambda services: services.serving.engine, (broken, no_descriptor, dead, late)),
    "tokenizer.encode_all": (lambda services: services.model.tokenizer, (broken, full)),
    "tokenizer.encode_prefix": (lambda services: services.model.tokenizer, (broken, full)),
    "tokenizer.detokenizer": (lambda services: services.model.tokenizer, (broken,)),
    "tokenizer.decode_long": (lambda services: services.model.tokenizer, (broken,)),
    "tokenizer.token_string": (lambda services: services.model.tokenizer, (broken,)),
    "tokenizer.piece": (lambda services: services.model.tokenizer, (broken,)),
    "pool.run": (lambda services: services.model.tokenizer.pool, (broken, full)),
    "threads.submit": (lambda services: services.model.tokenizer.pool._threads, (broken, no_descriptor)),
    "template.render": (lambda services: services.model.template, (broken, full)),
    "admission.admit": (lambda services: next(iter(services.serving.admissions.values())), (broken,)),
    "open.add": (lambda services: services.serving.open, (broken,)),
    "advisor.take_announcement": (lambda services: services.serving.advisor, (broken,)),
    "advisor.served": (lambda services: services.serving.advisor, (broken,)),
    "advisor.announce": (lambda services: services.serving.advisor, (broken, full)),
    "sessions.get": (lambda services: services.serving.advisor._sessions, (broken,)),
    "sessions.announce": (lambda services: services.serving.advisor._sessions, (broken,)),
    "histogram.observe": (lambda _: Histogram, (broken,)),
    "detokenizer.add": (lambda _: PieceDetokenizer, (broken,)),
    "choice.decode": (lambda _: Choice, (broken, full)),
    "chunks.piece": (lambda _: ChatChunks, (broken, full)),
    "chunks.end": (lambda _: ChatChunks, (broken, full)),
}
STORED = {
    **dict.fromkeys(
        [f"store.{name}" for name in ("create_file", "file", "create_batch", "batch", "cancel_batch", "delete_file")],
        (lambda services: services.offline, (broken, no_descriptor)),
    ),
    "threads.on_writer": (lambda services: services.offline._threads, (broken, no_descriptor)),
    "threads.in_background": (lambda services: services.offline._threads, (broken, no_descriptor)),
    "directory.open_part": (lambda services: services.offline._directory, (broken, no_descriptor)),
    "directory.publish": (lambda services: services.offline._directory, (broken, no_descriptor)),
    "accounts.check": (lambda services: services.offline._accounts, (broken, full)),
}


def cases(dependencies: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(name, find, make_error, id=f"{name}-{make_error.__name__}")
        for name, (find, errors) in dependencies.items()
        for make_error in errors
    ]


@pytest.mark.parametrize(("name", "find", "make_error"), cases(ONLINE))
async def test_failures_while_requests_are_served(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, name: str, find: Callable[[Services], Any], make_error: MakeError
) -> None:
    client = await serve(FakeEngine())
    await assert_every_failure_is_told(client, monkeypatch, serve_all, name, find, make_error)


@pytest.mark.parametrize(("name", "find", "make_error"), cases(STORED))
async def test_failures_while_files_and_batches_are_stored(
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    find: Callable[[Services], Any],
    make_error: MakeError,
) -> None:
    monkeypatch.setattr(Validator, "run", lambda _: asyncio.Event().wait())
    client = await serve(FakeEngine(is_ready=False), data_dir=str(tmp_path))
    await assert_every_failure_is_told(client, monkeypatch, store_all, name, find, make_error)
    await eventually(lambda: not num_parts(tmp_path))


def num_parts(directory: Path) -> int:
    return len(list((directory / "parts").iterdir()))


async def assert_every_failure_is_told(
    client: Client,
    patch: pytest.MonkeyPatch,
    run: Callable[[Client], Awaitable[int]],
    name: str,
    find: Callable[[Services], Any],
    make_error: MakeError,
) -> None:
    services = client.app[SERVICES]  # type: ignore[union-attr]
    failing = FailingCall(patch, find(services), name.rpartition(".")[2], make_error)
    for i in range(1, MAX_CALLS):
        services.serving.advisor._sessions._tenants.clear()  # or the next advisory would be answered without the engine
        failing.fail_at(i)
        async with asyncio.timeout(30.0):
            num_errors = await run(client)
        await assert_nothing_is_open(services)
        if not failing.was_reached:
            assert num_errors == 0
            assert i > 1, "it was never called"
            return
    pytest.fail(f"more than {MAX_CALLS} calls")


async def serve_all(client: Client) -> int:
    """The number of requests that failed, each in OpenAI's words."""
    outcomes = [await is_error(await client.post(path, json=body)) for path, body in REQUESTS]
    outcomes += [await is_error(await client.get(path)) for path in ("/v1/models", "/metrics")]
    return sum(outcomes)


async def store_all(client: Client) -> int:
    """The same; a batch keeps its file, so another one is deleted."""
    outcomes: list[bool] = []
    for path in await made(client.post("/v1/files", data=form()), "/v1/files", outcomes):
        outcomes += [await is_error(await client.get(f"{path}/content")), await is_error(await client.delete(path))]
    for path in await made(client.post("/v1/files", data=form()), "/v1/files", outcomes):
        body = {"endpoint": "/v1/completions", "completion_window": "24h", "input_file_id": path.rpartition("/")[2]}
        for batch in await made(client.post("/v1/batches", json=body), "/v1/batches", outcomes):
            outcomes += [await is_error(await client.get(batch)), await is_error(await client.post(f"{batch}/cancel"))]
    return sum(outcomes)


def form() -> aiohttp.FormData:
    fields = aiohttp.FormData({"purpose": "batch"}, default_to_multipart=True)
    fields.add_field("file", b"{}\n", filename="rows.jsonl")
    return fields


async def made(asking: Awaitable[aiohttp.ClientResponse], path: str, outcomes: list[bool]) -> list[str]:
    """Where it is, if it was made."""
    response = await asking
    outcomes.append(await is_error(response))
    return [f"{path}/{(await response.json())['id']}"] if response.status == 200 else []


async def is_error(response: aiohttp.ClientResponse) -> bool:
    """Reads it to its end, and checks that an error has its shape."""
    text = await response.text()
    if response.status != 200:
        check_error(text)
    elif response.content_type == "text/event-stream":
        last = [line for line in text.splitlines() if line][-1].removeprefix("data: ")
        if last != "[DONE]":
            check_error(last)
        return last != "[DONE]"
    return response.status != 200


def check_error(text: str) -> None:
    body = json.loads(text)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
