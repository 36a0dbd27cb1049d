"""Deaths in a fleet, all real: an engine's under streams of every kind, and a gateway's beside another one.

`make test` runs a short cut; HOCKET_TEST_FLEET=1 (`make test-fleet`) all of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fakes.eventually import eventually, wait_until
from fakes.real_fleet import RealFleet, Streams, fleet
from fakes.sse_reader import parse_events

WHOLE = os.environ.get("HOCKET_TEST_FLEET", "") == "1"
long = pytest.mark.skipif(not WHOLE, reason="HOCKET_TEST_FLEET=1: make test-fleet")
NUM_KILLS = 4 if WHOLE else 1
NUM_TOKENS = 400
SECONDS = 120.0  # for what should take a few: the machine may be busy
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "logprobs": 2},
    {"seed": 1},
    {"seed": 2, "top_p": 0.9, "top_k": 50, "logprobs": 1},
    {"seed": 3, "frequency_penalty": 0.7, "presence_penalty": 0.5},
    {"seed": 4, "repetition_penalty": 1.2},
    {"seed": 5, "stop": ["zq", "qzq"], "min_tokens": 100},
    {"seed": 6, "n": 2},
]
NUM_ENGINE_REQUESTS = 2 * (len(KINDS) + 1)  # n = 2 is two


async def answer(session: aiohttp.ClientSession, number: int) -> dict[int, dict[str, Any]]:
    """By choice: text, tokens, log-probabilities, finish reasons."""
    body = {"prompt": f"Story {number}", "max_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True}
    asked = {**body, **KINDS[number % len(KINDS)], "stream": True}
    async with session.post("/v1/completions", json=asked) as response:
        assert response.status == 200, await response.text()
        *chunks, end = [event for event in parse_events(await response.text()) if not str(event).startswith(":")]
    assert end == "[DONE]", end
    found: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        assert "error" not in chunk, chunk
        for choice in chunk["choices"]:
            of = found.setdefault(choice["index"], {"text": "", "tokens": [], "logprobs": [], "ends": []})
            of["text"] += choice["text"]
            of["tokens"] += choice.get("token_ids") or []
            of["logprobs"] += (choice.get("logprobs") or {}).get("token_logprobs") or []
            of["ends"] += [choice["finish_reason"]] if choice["finish_reason"] else []
    return found


async def answers(session: aiohttp.ClientSession) -> list[dict[int, dict[str, Any]]]:
    return list(await asyncio.gather(*(answer(session, number) for number in range(2 * len(KINDS)))))


@pytest.fixture
def pair(tmp_path: Path, cluster_dir: Path) -> Iterator[RealFleet]:
    with fleet(tmp_path, cluster_dir, "--routing", "round_robin") as running:
        for name in ("a", "b"):
            running.add(name)
        for name in ("a", "b"):
            running.wait_for(name, "up")
        yield running


async def test_streams_of_every_kind_say_the_same_after_their_engine_was_killed(pair: RealFleet) -> None:
    server = pair.server
    moments = random.Random(random.randrange(2**32))
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=0)) as session:
        expected = await answers(session)
        for _ in range(NUM_KILLS):
            num_resumed = server.metric("hocket_resumed_requests_total")
            begun = server.metric("hocket_output_tokens_total")
            asked = asyncio.create_task(answers(session))
            needed = begun + moments.uniform(0.01, 0.6) * len(KINDS) * 2 * NUM_TOKENS
            await eventually(lambda least=needed: server.metric("hocket_output_tokens_total") >= least, SECONDS)  # type: ignore[misc]
            before = pair.status()["a"]["incarnation"]
            os.kill(pair.nodes["a"].engine_pid, signal.SIGKILL)
            for found, whole in zip(await asked, expected, strict=True):
                for index, choice in whole.items():
                    assert found[index]["tokens"] == choice["tokens"], "a token is missing, or there twice"
                    assert (found[index]["text"], found[index]["ends"]) == (choice["text"], choice["ends"])
                    assert found[index]["logprobs"] == pytest.approx(choice["logprobs"], abs=1e-3)
            assert server.metric("hocket_resumed_requests_total") - num_resumed <= NUM_ENGINE_REQUESTS
            await eventually(lambda old=before: pair.status()["a"]["incarnation"] != old, SECONDS)  # type: ignore[misc]
            await asyncio.to_thread(pair.wait_for, "a", "up")
    assert server.metric("hocket_resumed_requests_total", cause="died") > 0
    assert "Traceback" not in pair.log()


@pytest.fixture
def gateways(tmp_path: Path, cluster_dir: Path) -> Iterator[tuple[RealFleet, RealFleet]]:
    """Two of them over two nodes, which are the first one's to end."""
    with ExitStack() as stack:
        found = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            found.append(stack.enter_context(fleet(tmp_path / name, cluster_dir, "--routing", "round_robin")))
        for name in ("a", "b"):
            found[0].add(name, address=f"{found[0].address},{found[1].address}")
        for gateway in found:
            for name in ("a", "b"):
                gateway.wait_for(name, "up")
        yield found[0], found[1]


def num_running(gateway: RealFleet) -> int:
    """On all engines, whoever sent it."""
    return sum(int(node["num_running"]) for node in gateway.status().values())


def test_a_killed_gateways_requests_are_aborted_and_the_other_ones_streams_go_on(
    gateways: tuple[RealFleet, RealFleet],
) -> None:
    one, two = gateways
    lost = Streams(one.server.url, 8, 1900)
    kept = Streams(two.server.url, 4, 1500)
    wait_until(lambda: lost.have_begun and kept.have_begun, SECONDS)
    wait_until(lambda: num_running(two) == 12, SECONDS)
    one.server.process.send_signal(signal.SIGKILL)
    wait_until(lambda: num_running(two) <= 4, SECONDS)
    assert not all(kept.ends), "the engines are rid of what was lost while the others run"
    kept.wait()
    lost.wait()
    assert kept.ends == [["length"]] * 4
    assert all(end in ([], ["cut off"]) for end in lost.ends), "nothing that ends a stream comes"
    undisturbed = Streams(two.server.url, 4, 1500)
    undisturbed.wait()
    assert ["".join(text) for text in kept.texts] == ["".join(text) for text in undisturbed.texts]


async def cached_ratio(urls: list[str], salt: str) -> float:
    """Of prompts, over conversations whose turns go to the gateways in turn."""
    num_cached = num_tokens = 0
    async with aiohttp.ClientSession() as session:
        for turn in range(4):
            for chat in range(12):
                prompt = f"{chat}: " + "It began a long time ago, and nobody who was there remembers. " * (4 + 2 * turn)
                fields = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "session_id": f"chat {chat}"}
                url = urls[(turn + chat) % len(urls)]
                async with session.post(f"{url}/v1/completions", json={**fields, "cache_salt": salt}) as response:
                    usage = (await response.json())["usage"]
                num_cached += usage["prompt_tokens_details"]["cached_tokens"]
                num_tokens += usage["prompt_tokens"]
            await asyncio.sleep(0.6)  # engines say what they have four times a second
    return num_cached / num_tokens


@long
async def test_behind_a_balancer_two_gateways_find_as_much_as_one(tmp_path: Path, cluster_dir: Path) -> None:
    with ExitStack() as stack:
        found = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            found.append(stack.enter_context(fleet(tmp_path / name, cluster_dir)))
        for name in ("a", "b"):
            found[0].add(name, address=f"{found[0].address},{found[1].address}")
        for gateway in found:
            for name in ("a", "b"):
                await asyncio.to_thread(gateway.wait_for, name, "up")
        urls = [gateway.server.url for gateway in found]
        alone, shared = await cached_ratio(urls[:1], "one"), await cached_ratio(urls, "two")
    assert alone > 0.4
    assert shared >= alone - 0.02
