"""A gateway over gateways: this server's own OpenAI API is what a stock server speaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from fakes.byte_tokenizer import VOCAB_SIZE
from fakes.eventually import eventually
from fakes.fake_engine import INFO, FakeEngine, saying
from gateway.base.supervision import Supervisor
from gateway.engine.engine_client import EngineDeadError
from gateway.stock.server_facts import PROBE_TEXT
from gateway.stock.stock_servers import StockServers
from schedcore.api.types import EngineError, EngineRequest, ErrorCode, FinishReason, RequestClass, TokenDelta

Client = TestClient[Any, Any]
Serve = Callable[..., Awaitable[Client]]
PROBE_IDS = list(PROBE_TEXT.encode())


def over(*clients: Client, key: str = "", names: tuple[str, ...] = ("demo",)) -> StockServers:
    urls = [str(client.make_url("/")).rstrip("/") for client in clients]
    return StockServers(urls, names, VOCAB_SIZE, PROBE_IDS, Supervisor(), key)


@pytest.fixture
async def started() -> AsyncIterator[Callable[..., Awaitable[StockServers]]]:
    made: list[StockServers] = []

    async def start(*clients: Client, **options: Any) -> StockServers:
        made.append(over(*clients, **options))
        await made[-1].start()
        await eventually(lambda: all(server.is_usable for server in made[-1].servers))
        return made[-1]

    yield start
    for servers in made:
        await servers.close()


async def ask(servers: StockServers, request: EngineRequest) -> list[TokenDelta]:
    deltas = []
    with servers.stream([request]) as stream:
        while arrived := await stream.receive():
            deltas += arrived
    return deltas


def prompt(number: int, text: str = "hello", **more: Any) -> EngineRequest:
    return EngineRequest(number, list(text.encode()), more.pop("max_tokens", 5), **more)


async def test_what_the_server_says_is_what_the_client_gets(serve: Serve) -> None:
    upstream = await serve(FakeEngine())
    front = await serve(over(upstream))
    body = {"model": "demo", "prompt": "hello", "max_tokens": 5, "logprobs": 2, "return_token_ids": True}

    async def choice(client: Client) -> Any:
        response = await client.post("/v1/completions", json=body)
        assert response.status == 200, await response.text()
        return (await response.json())["choices"][0]

    await eventually_serving(front)
    assert await choice(front) == await choice(upstream)
    chat = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    stream = await (await front.post("/v1/chat/completions", json=chat)).text()
    assert stream.endswith("data: [DONE]\n\n")
    text = "".join(json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in stream.split("\n\n")[:-2])
    assert text == "hi"


async def eventually_serving(client: Client) -> None:
    while (await client.get("/health")).status != 200:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_what_no_server_can_do_is_refused_by_name(serve: Serve) -> None:
    front = await serve(over(await serve(FakeEngine())))
    await eventually_serving(front)
    base = {"model": "demo", "prompt": "hello"}
    for path, body, named in (
        ("/v1/completions", base | {"prompt_logprobs": 1}, "log-probabilities of the prompt"),
        ("/v1/completions", base | {"guided_grammar": "start: /a+/"}, "grammars in LARK"),
        ("/v1/advisories", {"session_id": "s", "event": "typing"}, "Advisories"),
    ):
        response = await front.post(path, json=body)
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == (400, "unsupported")
        assert named in error["message"]


async def test_the_first_look_says_what_the_server_is(serve: Serve, started: Any) -> None:
    servers = await started(await serve(FakeEngine()))
    assert servers.info.max_model_len == INFO.max_model_len
    assert servers.info.policy == "priority"
    assert servers.trouble is None


async def test_another_tokenizer_ends_the_start(serve: Serve) -> None:
    upstream = await serve(FakeEngine())
    url = str(upstream.make_url("/")).rstrip("/")
    servers = StockServers([url], ("demo",), VOCAB_SIZE, [1, 2, 3], Supervisor())
    with pytest.raises(EngineDeadError, match="tokenizer is not that of the MODEL"):
        await servers.start()
    await servers.close()


async def test_a_key_that_is_not_theirs_ends_the_start(serve: Serve, started: Any) -> None:
    upstream = await serve(FakeEngine(), api_keys=("secret",))
    servers = over(upstream, key="wrong")
    with pytest.raises(EngineDeadError, match="HOCKET_ENGINE_API_KEY"):
        await servers.start()
    await servers.close()
    assert (await started(upstream, key="secret")).is_alive


async def test_an_abort_reaches_the_server(serve: Serve, started: Any) -> None:
    engine = FakeEngine(is_manual=True)
    servers = await started_by_steps(engine, serve, started)
    with servers.stream([prompt(1, max_tokens=1000)]):
        await eventually(lambda: engine.num_open == 1)
    await eventually(lambda: engine.num_open == 0)
    assert servers.num_open == 0


async def started_by_steps(engine: FakeEngine, serve: Serve, started: Any) -> StockServers:
    """With an engine that is stepped by hand, which the first look's one token needs, too."""
    client = await serve(engine)
    starting = asyncio.ensure_future(started(client))
    while not starting.done():
        engine.step()
        await asyncio.sleep(0.005)
    servers: StockServers = await starting
    return servers


async def test_a_request_without_a_token_goes_to_another_server(serve: Serve, started: Any) -> None:
    first, second = FakeEngine(), FakeEngine()
    servers = await started(await serve(first, resume_wait_ms=0.0), await serve(second))
    dead = servers.servers[0]
    first.refusal = EngineError(ErrorCode.ENGINE_DEAD, "it died")
    second.refusal = None
    numbers = range(10, 20)
    answers = await asyncio.gather(*(ask(servers, prompt(i, f"{i} hello")) for i in numbers))
    assert all(deltas[-1].finish_reason is not FinishReason.ERROR for deltas in answers)
    assert servers.stats().num_retries > 0
    assert dead.num_open == 0


async def test_a_request_with_tokens_ends_and_the_server_comes_back(serve: Serve, started: Any) -> None:
    engine = FakeEngine(is_manual=True)
    servers = await started_by_steps(engine, serve, started)
    with servers.stream([prompt(1, max_tokens=1000)]) as stream:
        await eventually(lambda: engine.num_open == 1)
        engine.step()
        assert (await stream.receive())[0].token_ids
        engine.die("the engine was killed")
        (last,) = await stream.receive()
    assert last.error is not None
    assert last.error.code is ErrorCode.ENGINE_DEAD
    assert "after 1 tokens" in last.error.message
    await eventually(lambda: not servers.is_alive)
    with pytest.raises(EngineDeadError, match="the engine was killed") as refused:
        servers.stream([prompt(2)])
    assert refused.value.code == "restarting"
    engine.revive()
    while not servers.is_alive:
        engine.step()
        await asyncio.sleep(0.005)
    assert servers.num_restarts == 1


async def test_a_refusal_is_the_clients(serve: Serve, started: Any) -> None:
    servers = await started(await serve(FakeEngine()))
    (last,) = await ask(servers, prompt(1, max_tokens=10**6))
    assert last.error is not None
    assert last.error.code is ErrorCode.INVALID
    assert "context length" in last.error.message


async def test_a_busy_server_is_no_dead_one(serve: Serve, started: Any) -> None:
    engine = FakeEngine()
    servers = await started(await serve(engine))
    engine.refusal = EngineError(ErrorCode.QUEUE_FULL, "full")
    (last,) = await ask(servers, prompt(1))
    assert last.error is not None
    assert last.error.code is ErrorCode.OVERLOADED
    assert servers.is_alive


async def test_offline_work_waits_for_the_window_and_for_online_requests(serve: Serve, started: Any) -> None:
    engine = FakeEngine(is_manual=True)
    servers = await started_by_steps(engine, serve, started)
    window = servers.servers[0].window.size
    online = servers.stream([prompt(0, max_tokens=3)])
    offline = servers.stream(
        [prompt(i, max_tokens=2, request_class=RequestClass.OFFLINE) for i in range(1, 4 * window)]
    )
    assert servers.servers[0].num_offline == 0, "an online request waits for its first token"
    await eventually(lambda: engine.num_open == 1)
    most = 0
    with online, offline:
        while servers.num_open:
            engine.step()
            await asyncio.sleep(0.002)
            most = max(most, servers.servers[0].num_offline)
            assert servers.servers[0].num_offline <= servers.servers[0].window.size
    assert most >= window
    assert servers.stats().num_finished[FinishReason.LENGTH] == 4 * window


async def test_a_lost_server_makes_health_degraded(serve: Serve) -> None:
    first, second = FakeEngine(script=saying("one")), FakeEngine(script=saying("one"))
    servers = over(await serve(first), await serve(second))
    front = await serve(servers)
    await eventually_serving(front)
    await eventually(lambda: all(server.is_usable for server in servers.servers))
    first.die("gone")
    servers.servers[0].look_soon.set()
    await eventually(lambda: servers.trouble is not None)
    body = await (await front.get("/health")).json()
    assert body["status"] == "degraded"
    assert "1 of 2 servers" in body["reason"]
    assert (await front.post("/v1/completions", json={"model": "demo", "prompt": "x"})).status == 200
    second.die("gone, too")
    servers.servers[1].look_soon.set()
    await eventually(lambda: not servers.is_alive)
    response = await front.get("/health")
    assert (response.status, (await response.json())["status"]) == (503, "restarting")
