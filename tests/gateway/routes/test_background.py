"""Responses in the background: asked for later, cancelled, limited as all others are."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fakes.fake_engine import FakeEngine, saying
from schedcore.api.types import EngineError, ErrorCode

PATH = "/v1/responses"


async def begun(client: Any, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    response = await client.post(PATH, json={"input": "Hello", "background": True} | fields, headers=headers)
    body: dict[str, Any] = await response.json()
    assert response.status == 200, body
    assert (body["status"], body["background"], body["output"]) == ("queued", True, [])
    return body


async def get(client: Any, body: dict[str, Any], more: str = "", **options: Any) -> tuple[int, dict[str, Any]]:
    response = await client.get(f"{PATH}/{body['id']}{more}", **options)
    return response.status, await response.json()


async def test_it_is_polled_until_it_has_ended(serve: Any) -> None:
    engine = FakeEngine(saying("Good day"), is_manual=True)
    client = await serve(engine)
    body = await begun(client)
    assert (await get(client, body))[1]["status"] == "queued"
    engine.step()
    assert (await get(client, body))[1]["status"] == "in_progress"
    assert len((await get(client, body, "/input_items"))[1]["data"]) == 1
    for _ in range(10):
        engine.step()
    ended = (await get(client, body))[1]
    assert (ended["status"], ended["output"][0]["content"][0]["text"]) == ("completed", "Good day")
    assert {name: ended[name] for name in ("id", "created_at", "background")} == {
        name: body[name] for name in ("id", "created_at", "background")
    }
    assert len((await get(client, body, "/input_items"))[1]["data"]) == 1


async def test_one_may_go_on_from_it(serve: Any) -> None:
    client = await serve(FakeEngine(saying("Good day")))
    body = await begun(client)
    for _ in range(1000):
        if (await get(client, body))[1]["status"] == "completed":
            break
    answer = await client.post(PATH, json={"input": "And now?", "previous_response_id": body["id"]})
    assert answer.status == 200


async def test_cancelling_ends_it_in_the_engine_and_once_more_changes_nothing(serve: Any) -> None:
    engine = FakeEngine(is_manual=True)
    client = await serve(engine)
    body = await begun(client)
    engine.step()
    cancelled = await (await client.post(f"{PATH}/{body['id']}/cancel")).json()
    assert (cancelled["status"], engine.num_open, len(engine.aborted)) == ("cancelled", 0, 1)
    assert await (await client.post(f"{PATH}/{body['id']}/cancel")).json() == cancelled
    assert (await get(client, body))[1] == cancelled
    assert len((await get(client, body, "/input_items"))[1]["data"]) == 1


async def test_cancelling_before_anything_happened(serve: Any) -> None:
    engine = FakeEngine(is_manual=True)
    client = await serve(engine)
    answers = await asyncio.gather(*(begun(client) for _ in range(5)))
    for body in answers:
        await client.post(f"{PATH}/{body['id']}/cancel")
    assert engine.num_open == 0


async def test_deleting_one_that_runs_ends_it(serve: Any) -> None:
    engine = FakeEngine(is_manual=True)
    client = await serve(engine)
    body = await begun(client)
    assert (await client.delete(f"{PATH}/{body['id']}")).status == 200
    assert engine.num_open == 0
    assert (await get(client, body))[0] == 404


async def test_a_failure_is_its_status(serve: Any) -> None:
    engine = FakeEngine()
    engine.refusal = EngineError(ErrorCode.INVALID, "no token is left")
    client = await serve(engine)
    body = await begun(client)
    failed = (await get(client, body))[1]
    assert (failed["status"], failed["error"]["message"]) == ("failed", "no token is left")


async def test_other_keys_do_not_see_it(serve: Any) -> None:
    engine = FakeEngine(is_manual=True)
    client = await serve(engine, api_keys=("a", "b"))
    mine, other = ({"Authorization": f"Bearer {key}"} for key in "ab")
    body = await begun(client, mine)
    assert (await get(client, body, headers=other))[0] == 404
    assert (await client.post(f"{PATH}/{body['id']}/cancel", headers=other)).status == 404
    assert (await client.delete(f"{PATH}/{body['id']}", headers=other)).status == 404
    assert (await get(client, body, headers=mine))[0] == 200


async def test_one_that_was_waited_for_cannot_be_cancelled(serve: Any) -> None:
    client = await serve(FakeEngine())
    body = await (await client.post(PATH, json={"input": "Hello"})).json()
    response = await client.post(f"{PATH}/{body['id']}/cancel")
    assert (response.status, (await response.json())["error"]["code"]) == (400, "response_not_cancellable")


@pytest.mark.parametrize(
    ("fields", "param", "config"),
    [
        ({"stream": True}, "background", {}),
        ({"store": False}, "store", {}),
        ({}, "background", {"max_response_bytes": 0}),
    ],
)
async def test_what_cannot_be_is_refused(serve: Any, fields: Any, param: str, config: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine, **config)
    response = await client.post(PATH, json={"input": "Hello", "background": True} | fields)
    assert (response.status, (await response.json())["error"]["param"]) == (400, param)
    assert engine.num_open == 0


async def test_a_server_that_stops_ends_them(serve: Any) -> None:
    engine = FakeEngine(is_manual=True)
    client = await serve(engine)
    await begun(client)
    await client.close()
    assert engine.num_open == 0


async def test_text_after_a_call_is_shown_in_streams(serve: Any) -> None:
    call = '{"name": "f", "parameters": {}}'
    client = await serve(FakeEngine(saying(f"{call} And that was it.")))
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    response = await client.post(PATH, json={"input": "Hello", "stream": True, "tools": [tool]})
    events = [json.loads(line[6:]) for line in (await response.text()).splitlines() if line.startswith("data: ")]
    whole = events[-1]["response"]
    assert [item["type"] for item in whole["output"]] == ["function_call", "message"]
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta").strip() == (
        "And that was it."
    )
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1]
    done = {event["output_index"]: event["item"] for event in events if event["type"] == "response.output_item.done"}
    assert [done[0], done[1]] == whole["output"]
    assert all(event["output_index"] == 1 for event in events if event["type"].startswith("response.output_text"))
