"""Reads server-sent events strictly, as a test should: a malformed frame is an error."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine


def parse_events(body: str) -> list[Any]:
    """The parsed events; "[DONE]" and comments stand as they are."""
    frames = body.split("\n\n")
    assert frames.pop() == "", "the last frame is cut"
    return [_parse(frame) for frame in frames]


def _parse(frame: str) -> Any:
    if frame.startswith(":"):
        return frame
    assert frame.startswith("data: "), frame
    payload = frame.removeprefix("data: ")
    return payload if payload == "[DONE]" else json.loads(payload)


async def stream_events(client: Any, path: str, **fields: Any) -> list[Any]:
    """Posts with `stream: true` through an aiohttp client and reads to the end."""
    response = await client.post(path, json={"stream": True, **fields})
    assert response.status == 200, await response.text()
    assert response.headers["Content-Type"].startswith("text/event-stream")
    return parse_events(await response.text())


async def events_by_step(client: Any, engine: FakeEngine, path: str, num_steps: int, **fields: Any) -> list[Any]:
    """The first event after each step of a manual engine; a step without one fails in time."""
    posting = asyncio.create_task(client.post(path, json={"stream": True, **fields}))
    await eventually(lambda: engine.num_open == 1)
    events = []
    for _ in range(num_steps):
        engine.step()
        response = await posting
        frame = await asyncio.wait_for(response.content.readuntil(b"\n\n"), 10.0)
        events += parse_events(frame.decode())
    response.close()
    return events
