"""kill -9 of the engine: /health says so, and it comes back; where nobody goes on, every request has a final error.

How requests go on: test_streams_survive.py.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import aiohttp
import openai
import psutil
import pytest

from fakes.eventually import eventually
from fakes.served import serving
from fakes.sse_reader import parse_events

BODY = {"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True, "max_tokens": 100, "n": 8}


async def test_killed_engine_ends_every_request(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-engine-restarts", "0") as server:
        url = f"{server.url}/v1/chat/completions"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            streams = [await session.post(url, json=BODY | {"stream": True}) for _ in range(20)]
            server.engine.kill()
            bodies = [await stream.text() for stream in streams]
        num_failed = 0
        for body in bodies:
            events = parse_events(body)
            if events[-1] != "[DONE]":  # what had finished before stays finished
                num_failed += 1
                assert events[-1]["error"]["type"] == "service_unavailable_error"
                assert "SIGKILL" in events[-1]["error"]["message"]
                assert sum("error" in event for event in events) == 1
        assert num_failed > 0
        await eventually(lambda: server.health() == 503)
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.InternalServerError) as raised:
                client.completions.create(model=server.model, prompt="Hello")
            assert raised.value.status_code == 503
            assert raised.value.code == "engine_dead"
        assert server.process.poll() is None
        assert server.metric("hocket_engine_up") == 0
        assert "Traceback" not in server.log()


async def test_requests_without_stream_get_503(tmp_path: Path) -> None:
    with serving(tmp_path, "--resume-wait-ms", "0") as server:
        url = f"{server.url}/v1/chat/completions"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            asking = [asyncio.create_task(session.post(url, json=BODY)) for _ in range(5)]
            await eventually(lambda: server.metric("hocket_output_tokens_total") > 0)
            server.engine.kill()
            responses = await asyncio.gather(*asking)
        statuses = {response.status for response in responses}
        assert 503 in statuses
        assert statuses <= {200, 503}


async def test_killed_engine_is_started_again(tmp_path: Path) -> None:
    with serving(tmp_path) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        first = server.engine
        first.kill()
        await eventually(lambda: server.metric("hocket_engine_restarts_total") == 1, seconds=60)
        await eventually(lambda: server.health() == 200, seconds=60)
        assert server.engine.pid != first.pid
        assert client.completions.create(model=server.model, prompt="Hello").choices[0].finish_reason


async def test_hung_engine_is_killed_and_started_again(tmp_path: Path) -> None:
    with serving(tmp_path, "--engine-timeout-ms", "1500", "--resume-wait-ms", "0") as server:
        first = server.engine
        async with aiohttp.ClientSession() as session:
            stream = await session.post(f"{server.url}/v1/chat/completions", json=BODY | {"stream": True})
            await stream.content.readuntil(b"\n\n")
            first.suspend()
            events = parse_events(await stream.text())
        assert "hung" in events[-1]["error"]["message"]
        await eventually(lambda: server.metric("hocket_engine_restarts_total") == 1, seconds=60)
        await eventually(lambda: server.health() == 200, seconds=60)
        assert not first.is_running()
        assert "hung" in server.log()


def test_a_gateway_that_was_stopped_blames_no_engine(tmp_path: Path) -> None:
    with serving(tmp_path, "--engine-timeout-ms", "400") as server:
        first, gateway = server.engine, psutil.Process(server.process.pid)
        gateway.suspend()
        time.sleep(2.0)  # several limits, which pass for the engine and not for the gateway
        gateway.resume()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            assert client.completions.create(model=server.model, prompt="Hello").choices
        assert server.engine.pid == first.pid
        assert server.metric("hocket_engine_restarts_total") == 0


async def test_a_killed_gateway_leaves_no_folder_behind(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        engine = server.engine
        folder = Path(engine.cmdline()[-1].removeprefix("ipc://")).parent
        assert folder.is_dir()
        server.process.kill()
        await eventually(lambda: not engine.is_running(), seconds=60)
        assert not folder.exists()
