"""kill -9 of a vLLM engine while streams run: they go on at the next vLLM, or at an engine of ours beside it.

HOCKET_TEST_VLLM_PYTHON names the Python that has vLLM (make test-vllm).
"""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fakes import served
from fakes.eventually import eventually, wait_until
from fakes.real_fleet import RealFleet, Streams, fleet
from fakes.served import Server, serving
from fakes.sse_reader import parse_events

PYTHON = os.environ.get("HOCKET_TEST_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs HOCKET_TEST_VLLM_PYTHON: make test-vllm")
OPTIONS = ("--engine", "vllm", "--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", "256M")
SECONDS = 280.0  # vLLM takes half a minute alone
NUM_TOKENS = 400
MENU = {"type": "array", "items": {"enum": ["rice", "beans", "bread"]}, "minItems": 60, "maxItems": 60}
REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 2},
    {"seed": 1, "top_p": 0.9, "n": 2},
    {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": 0.7},
    {"seed": 2, "repetition_penalty": 1.2, "min_tokens": 300},
    {"seed": 3, "structured_outputs": {"json": MENU}, "ignore_eos": False},
    {"seed": 4, "service_tier": "flex"},
]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    assert PYTHON is not None
    monkeypatch.setattr(served, "START_SECONDS", SECONDS)
    with serving(tmp_path, *OPTIONS, "--vllm-python", PYTHON, "--resume-wait-ms", "600000") as running:
        yield running


async def answer(session: aiohttp.ClientSession, fields: dict[str, Any]) -> dict[int, tuple[list[int], str]]:
    """Tokens and end, by choice."""
    asked = {"prompt": "Once upon a time", "max_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True}
    async with session.post("/v1/completions", json={**asked, **fields, "stream": True}) as response:
        assert response.status == 200, await response.text()
        *chunks, end = parse_events(await response.text())
    assert end == "[DONE]", end
    found: dict[int, tuple[list[int], str]] = {}
    for chunk in chunks:
        if not isinstance(chunk, dict):  # a comment
            continue
        assert "error" not in chunk, chunk
        for choice in chunk["choices"]:
            tokens, reason = found.get(choice["index"], ([], ""))
            found[choice["index"]] = [*tokens, *(choice.get("token_ids") or [])], choice["finish_reason"] or reason
    return found


async def test_every_answer_is_that_of_an_undisturbed_run(server: Server) -> None:
    async with aiohttp.ClientSession(server.url, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def answers() -> list[dict[int, tuple[list[int], str]]]:
            return list(await asyncio.gather(*(answer(session, fields) for fields in REQUESTS)))

        expected = await answers()
        assert {reason for found in expected for _, reason in found.values()} <= {"length", "stop"}
        before = server.metric("hocket_output_tokens_total")
        again = asyncio.create_task(answers())
        await eventually(lambda: server.metric("hocket_output_tokens_total") > before + NUM_TOKENS, seconds=SECONDS)
        os.kill(server.engine.pid, signal.SIGKILL)
        assert await again == expected
    assert server.metric("hocket_resumed_requests_total", cause="died") >= 5
    assert server.metric("hocket_engine_restarts_total") == 1


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[RealFleet]:
    """A node with our own engine, and one with vLLM."""
    assert PYTHON is not None
    with fleet(tmp_path, None, "--resume-wait-ms", "600000", "--routing", "least_loaded") as running:
        running.add("ours")
        running.add("vllm", *OPTIONS, "--vllm-python", PYTHON)
        for name in ("ours", "vllm"):
            running.wait_for(name, "up", SECONDS)
        yield running


def test_in_a_mixed_fleet_streams_of_a_killed_vllm_end_at_our_engine(mixed: RealFleet) -> None:
    undisturbed = Streams(mixed.server.url, 8, 1000)
    undisturbed.wait()
    given = {name: node["num_given"] for name, node in mixed.status().items()}
    assert min(given.values()) > 0, "both have served"
    streams = Streams(mixed.server.url, 8, 1000)
    wait_until(lambda: streams.have_begun, SECONDS)
    os.kill(mixed.nodes["vllm"].engine_pid, signal.SIGKILL)
    streams.wait()
    for one, other in list(zip(streams.texts, undisturbed.texts, strict=True))[::2]:  # the greedy ones
        assert "".join(one) == "".join(other)
    assert streams.ends == [["length"]] * 8
    with urllib.request.urlopen(f"{mixed.server.url}/metrics") as metrics:
        assert 'hocket_resumed_requests_total{cause="died"} 0' not in metrics.read().decode()
    mixed.wait_for("vllm", "up", SECONDS)
