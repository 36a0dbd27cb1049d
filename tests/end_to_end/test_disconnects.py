"""200 concurrent streams, a third of them cut off at random: one final event each, and everything comes back."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp

from fakes.eventually import eventually
from fakes.served import Server
from fakes.sse_reader import parse_events

HEADERS = {"Authorization": "Bearer test-key"}
NUM_STREAMS = 200


async def run_stream(session: aiohttp.ClientSession, server: Server, i: int, bytes_until_cut: int | None) -> list[Any]:
    """The events; of a stream that is cut off, none."""
    body = {
        "messages": [{"role": "user", "content": f"Tell me a story about number {i}."}],
        "stream": True,
        "max_tokens": 64,
        "ignore_eos": True,
    }
    async with session.post(f"{server.url}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        if bytes_until_cut is None:
            return parse_events(await response.text())
        while bytes_until_cut > 0 and (data := await response.content.readany()):
            bytes_until_cut -= len(data)
        response.close()
    return []


async def test_streams_cut_off_at_random(server: Server) -> None:
    chance = random.Random(3)
    cuts = [chance.randrange(1, 4000) if i % 3 == 0 else None for i in range(NUM_STREAMS)]
    ended_before = server.metric("hocket_choices_total")
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=HEADERS) as session:
        streams = await asyncio.gather(*(run_stream(session, server, i, cut) for i, cut in enumerate(cuts)))

    for events, cut in zip(streams, cuts, strict=True):
        if cut is None:
            assert events[-1] == "[DONE]"
            assert not any("error" in event for event in events[:-1])
            reasons = [event["choices"][0]["finish_reason"] for event in events[:-1]]
            assert [reason for reason in reasons if reason] == ["length"]

    await eventually(lambda: server.metric("hocket_choices_total") == ended_before + NUM_STREAMS)
    await eventually(lambda: server.metric("hocket_requests_running") == 0)
    await eventually(lambda: server.metric("hocket_requests_waiting") == 0)
    await eventually(lambda: server.metric("hocket_cache_units", state="owned") == 0)
    assert server.metric("hocket_queue_tokens") == 0
    assert server.health() == 200
    assert "Traceback" not in server.log()
    assert " ERROR " not in server.log()
