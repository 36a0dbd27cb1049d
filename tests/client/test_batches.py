"""Batches: created, waited for, and run from an iterable to results as they land."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hocket
from fakes.batch_server import FakeBatch, FakeBatchServer
from fakes.http_script import Script
from hocket import AsyncClient, BatchResult, Client, Message

pytestmark = pytest.mark.usefixtures("no_naps")
PROMPTS = [f"number {n}" for n in range(7)]
ANSWERS = [f"You said: number {n}" for n in range(7)]


def texts(results: list[BatchResult]) -> list[str]:
    return [result.text for result in results]


def test_create_retrieve_list_cancel(batch_server: FakeBatchServer) -> None:
    row = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"content": "x"}]}}
    file_id = batch_server.add_file(json.dumps(row).encode())
    with Client(batch_server.url) as client:
        created = [client.batches.create(file_id, metadata={"job": str(n)}) for n in range(5)]
        assert created[0].metadata == {"job": "0"}
        assert (created[0].status, created[0].endpoint) == ("in_progress", "/v1/chat/completions")
        assert [batch.id for batch in client.batches.list()] == [batch.id for batch in reversed(created)]
        assert [batch.id for batch in client.batches.list(limit=3)] == [batch.id for batch in created[:1:-1]]
        assert client.batches.cancel(created[0].id).status == "cancelling"
        assert client.batches.retrieve(created[0].id).is_over
        with pytest.raises(hocket.APIStatusError, match="Cannot cancel"):
            client.batches.cancel(created[0].id)


def test_what_a_batch_is_created_with() -> None:
    script = Script(httpx.Response(200, json={"id": "batch_1", "status": "validating"}))
    with Client("http://server", transport=script) as client:
        client.batches.create(
            "file-1",
            endpoint="/v1/completions",
            completion_window="1h",
            metadata={"a": "b"},
            webhook_url="https://me/hook",
            output_expires_after=3600,
            extra_body={"new": 1},
        )
    assert script.bodies == [
        {
            "input_file_id": "file-1",
            "endpoint": "/v1/completions",
            "completion_window": "1h",
            "metadata": {"a": "b", "webhook_url": "https://me/hook"},
            "output_expires_after": {"anchor": "created_at", "seconds": 3600},
            "new": 1,
        }
    ]


def test_a_batch_is_not_created_again_when_it_is_unclear_whether_it_was() -> None:
    script = Script(httpx.ReadError("broken"))
    with Client("http://server", transport=script) as client, pytest.raises(hocket.APIConnectionError):
        client.batches.create("file-1")
    assert len(script.requests) == 1


def test_waiting_looks_less_often_while_nothing_happens(batch_server: FakeBatchServer, no_naps: list[float]) -> None:
    seen: list[int] = []
    with Client(batch_server.url) as client:
        run = client.batches.run(PROMPTS)
        next(run)
        batch_server.rows_per_look = 0
        batch = batch_server.batches[run.batch_ids[0]]

        def on_progress(seen_batch: hocket.Batch) -> None:
            seen.append(seen_batch.request_counts.completed)
            batch_server.rows_per_look = 5 if len(seen) == 12 else 0

        no_naps.clear()
        assert client.batches.wait(batch.id, on_progress=on_progress, max_poll_seconds=2).status == "completed"
    assert seen == [2] * 12 + [7]
    assert no_naps[0] == no_naps[1] / 1.5 == 0.25
    assert no_naps[-1] == 2


def test_waiting_has_an_end(batch_server: FakeBatchServer) -> None:
    batch_server.rows_per_look = 0
    with Client(batch_server.url) as client:
        run = client.batches.run(["x"], on_progress=lambda batch: (_ for _ in ()).throw(KeyError))
        with pytest.raises(KeyError):
            next(run)
        with pytest.raises(hocket.APITimeoutError, match="is still in_progress"):
            client.batches.wait(run.batch_ids[0], max_seconds=0)


def test_a_server_that_restarts_is_waited_for(no_naps: list[float]) -> None:
    body = {"id": "batch_1", "status": "completed"}
    broken: list[Any] = [httpx.ConnectError("refused"), httpx.Response(503)] * 3
    script = Script(*broken, httpx.Response(200, json=body))
    with Client("http://server", transport=script, max_retries=0) as client:
        assert client.batches.wait("batch_1").status == "completed"
    assert len(no_naps) == 6


@pytest.mark.parametrize("has_feed", [True, False])
@pytest.mark.parametrize("keeps_rows", [True, False])
@pytest.mark.parametrize("order", ["as_completed", "input"])
def test_every_request_has_one_result(order: Any, keeps_rows: bool, has_feed: bool) -> None:
    with FakeBatchServer(has_feed=has_feed, keeps_rows=keeps_rows) as server, Client(server.url) as client:
        results = list(client.batches.run(iter(PROMPTS), order=order))
    assert sorted(texts(results)) == ANSWERS
    assert all(result.is_ok and result.batch_id == "batch_2" for result in results)
    assert [result.text for result in sorted(results, key=lambda result: result.index or 0)] == ANSWERS
    if order == "input":
        assert texts(results) == ANSWERS
    elif has_feed:
        assert texts(results)[:2] == ANSWERS[:4:-1]


def test_results_come_before_the_batch_has_ended(batch_server: FakeBatchServer) -> None:
    with Client(batch_server.url) as client, client.batches.run(PROMPTS) as run:
        assert next(run).text == "You said: number 6"
        assert [batch.status for batch in run.batches] == ["in_progress"]


def test_requests_come_in_many_shapes(batch_server: FakeBatchServer) -> None:
    requests: list[Any] = [
        "a prompt",
        [{"role": "user", "content": "messages"}],
        [Message("user", "our messages")],
        {"messages": [{"role": "user", "content": "a body"}], "max_tokens": 5},
        {"custom_id": "mine", "body": {"messages": [{"role": "user", "content": "a row"}]}},
    ]
    with Client(batch_server.url) as client:
        results = list(client.batches.run(requests, order="input", params={"max_tokens": 3, "temperature": None}))
    said = ["a prompt", "messages", "our messages", "a body", "a row"]
    assert texts(results) == [f"You said: {text}" for text in said]
    assert [result.custom_id for result in results] == ["row-0", "row-1", "row-2", "row-3", "mine"]
    rows = next(iter(batch_server.batches.values())).rows
    assert [row["body"]["max_tokens"] for row in rows] == [3, 3, 3, 5, 3]
    assert {row["body"]["model"] for row in rows} == {"demo"}
    assert {(row["method"], row["url"]) for row in rows} == {("POST", "/v1/chat/completions")}


def test_prompts_of_completions(batch_server: FakeBatchServer) -> None:
    with Client(batch_server.url, model="other") as client:
        results = list(client.batches.run(["Once"], endpoint="/v1/completions"))
        results += client.batches.run([{"prompt": "Twice"}])
    assert texts(results) == ["You said: Once", "You said: Twice"]
    bodies = [batch.rows[0]["body"] for batch in batch_server.batches.values()]
    assert bodies == [{"model": "other", "prompt": "Once"}, {"model": "other", "prompt": "Twice"}]
    assert isinstance(results[0].answer, hocket.Completion)


def test_a_row_that_fails_is_a_result_with_an_error(batch_server: FakeBatchServer) -> None:
    with Client(batch_server.url) as client:
        results = list(client.batches.run(["fine", "refuse me"], order="input"))
    assert [result.is_ok for result in results] == [True, False]
    assert results[1].error == hocket.RowError(code="refused", message="No.")
    assert (results[1].text, results[1].answer) == ("", None)
    assert results[1].response is not None
    assert results[1].response.status_code == 400


def test_many_requests_become_several_batches_while_they_are_still_read(batch_server: FakeBatchServer) -> None:
    pulled: list[int] = []

    def requests() -> Iterator[str]:
        for number in range(10):
            pulled.append(number)
            yield f"number {number}"

    with Client(batch_server.url) as client:
        run = client.batches.run(requests(), rows_per_batch=3)
        first = next(run)
        assert (first.text, len(pulled)) == ("You said: number 2", 4)
        results = [first, *run]
    assert sorted(result.index or 0 for result in results) == list(range(10))
    assert [len(batch.rows) for batch in batch_server.batches.values()] == [3, 3, 3, 1]


def test_batches_are_limited_in_bytes_too(batch_server: FakeBatchServer) -> None:
    with Client(batch_server.url) as client:
        results = list(client.batches.run(["x" * 300] * 5, bytes_per_batch=1000, order="input"))
        with pytest.raises(ValueError, match="request 1 is larger than 1000 bytes"):
            list(client.batches.run(["x", "x" * 1000], bytes_per_batch=1000))
    assert len(results) == 5
    assert [len(batch.rows) for batch in batch_server.batches.values()][:3] == [2, 2, 1]


def test_a_full_server_gets_the_next_batch_when_one_has_ended(batch_server: FakeBatchServer) -> None:
    batch_server.max_open = batch_server.rows_per_look = 1
    with Client(batch_server.url) as client:
        assert sorted(texts(list(client.batches.run(PROMPTS, rows_per_batch=2)))) == ANSWERS
    assert batch_server.seen.count("POST /v1/batches") > 4


@pytest.mark.parametrize("room", [1, 2])
def test_a_batch_that_the_server_had_no_room_for_is_started_again(room: int, batch_server: FakeBatchServer) -> None:
    batch_server.room, batch_server.rows_per_look = room, 1
    with Client(batch_server.url) as client:
        run = client.batches.run([f"number {n}" for n in range(30)], rows_per_batch=6)
        results = list(run)
    assert sorted(result.index or 0 for result in results) == list(range(30))
    assert all(result.is_ok for result in results)
    assert len(run.batch_ids) == 5 < len(batch_server.batches)


def test_a_batch_that_is_too_much_by_itself_fails(batch_server: FakeBatchServer) -> None:
    batch_server.room = 0
    with Client(batch_server.url) as client:
        results = list(client.batches.run(PROMPTS, rows_per_batch=4))
    assert [result.error.code for result in results if result.error] == ["rows_quota_exceeded"] * 7


def test_a_batch_whose_creation_was_not_answered_is_found(batch_server: FakeBatchServer) -> None:
    batch_server.silences = 1
    with Client(batch_server.url) as client:
        assert sorted(texts(list(client.batches.run(PROMPTS)))) == ANSWERS
    assert len(batch_server.batches) == 1


@pytest.mark.parametrize(
    ("requests", "complaint"),
    [
        ([{"custom_id": "a", "body": "x"}, {"custom_id": "a", "body": "y"}], "request 1: custom_id 'a' is that of"),
        ([{"custom_id": 5, "body": "x"}], "request 0: custom_id must be a string"),
        (["x", {"model": "demo"}], "request 1 is none"),
        ([7], "request 0 is none"),
        ([{"prompt": object()}], "request 0 cannot be written as JSON"),
        ([{"prompt": float("nan")}], "request 0 cannot be written as JSON"),
        (["x", {"prompt": "y"}], "request 1 is for /v1/completions, those before for /v1/chat/completions"),
    ],
)
def test_what_is_no_request_is_named(requests: list[Any], complaint: str, batch_server: FakeBatchServer) -> None:
    with Client(batch_server.url) as client, pytest.raises(ValueError, match=complaint):
        list(client.batches.run(requests))
    assert not batch_server.batches


@pytest.mark.parametrize(
    ("requests", "params", "complaint"),
    [
        (None, {}, "give requests"),
        (["x"], {"resume": "batch_1"}, "one of the two"),
        ("x", {}, "not a single one"),
        (["x"], {"order": "random"}, "order must be"),
        (["x"], {"rows_per_batch": 0}, "rows_per_batch"),
    ],
)
def test_runs_that_cannot_be_are_refused_at_once(requests: Any, params: Any, complaint: str) -> None:
    with Client("http://server", transport=Script()) as client, pytest.raises(ValueError, match=complaint):
        client.batches.run(requests, **params)


def test_no_requests_are_no_results(batch_server: FakeBatchServer) -> None:
    with Client(batch_server.url) as client:
        assert list(client.batches.run([])) == []
    assert batch_server.seen == []


# ---- interrupted and resumed ----


@pytest.mark.parametrize("order", ["as_completed", "input"])
@pytest.mark.parametrize("has_feed", [True, False])
def test_a_run_is_resumed_by_its_ids(order: Any, has_feed: bool) -> None:
    with FakeBatchServer(has_feed=has_feed) as server, Client(server.url) as client:
        with client.batches.run(PROMPTS, rows_per_batch=4) as run:
            next(run)
            ids = run.batch_ids
        results = list(client.batches.run(resume=ids, order=order))
        again = list(client.batches.run(resume=list(server.batches), order="input"))
    resumed = 4 * len(ids)
    assert sorted(texts(results)) == ANSWERS[:resumed]
    assert sorted(result.index or 0 for result in results) == list(range(min(resumed, 7)))
    assert texts(again) == ANSWERS[:resumed]


def test_a_run_whose_input_was_deleted_is_resumed_without_places(batch_server: FakeBatchServer) -> None:
    with Client(batch_server.url) as client:
        run = client.batches.run(["a", "refuse"])
        next(run)
        client.files.delete(next(client.files.list()).id)
        batch_server.keeps_rows = False
        results = list(client.batches.run(resume=run.batch_ids[0]))
    assert sorted((result.custom_id, result.index, result.is_ok) for result in results) == [
        ("row-0", None, True),
        ("row-1", None, False),
    ]


@pytest.mark.parametrize("has_feed", [True, False])
def test_results_so_far_are_told_without_waiting(has_feed: bool, no_naps: list[float]) -> None:
    with FakeBatchServer(has_feed=has_feed) as server, Client(server.url) as client:
        run = client.batches.run([*PROMPTS, "refuse"])
        next(run)
        no_naps.clear()
        (batch,) = server.batches.values()
        batch_id, num_landed = batch.id, len(batch.landed)
        server.rows_per_look = 0
        assert len(list(client.batches.results(batch_id))) == (num_landed if has_feed else 8)
        server.rows_per_look = 8
        client.batches.retrieve(batch_id)
        for _ in range(2):
            lines = [result.as_line() for result in client.batches.results(batch_id)]
            assert sorted(lines, key=str) == sorted(batch.landed, key=str)
    assert not any(no_naps)


def test_ctrl_c_says_how_to_go_on(batch_server: FakeBatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with Client(batch_server.url) as client:
        run = client.batches.run(PROMPTS)
        results = [next(run), next(run)]
        monkeypatch.setattr("hocket._flows.time.sleep", interrupt)
        with pytest.raises(KeyboardInterrupt) as raised:
            list(run)
    (note,) = raised.value.__notes__
    assert note.startswith("1 batch goes on")
    assert f"client.batches.run(resume=['{run.batch_ids[0]}'])" in note
    assert len(results) == 2


def test_an_error_in_the_callers_block_says_so_too(batch_server: FakeBatchServer) -> None:
    def read() -> None:
        with Client(batch_server.url) as client, client.batches.run(PROMPTS) as run:
            next(run)
            raise KeyError("mine")

    with pytest.raises(KeyError) as raised:
        read()
    assert "resume=" in raised.value.__notes__[0]


def test_rows_of_a_batch_that_fails_fail_with_it(batch_server: FakeBatchServer) -> None:
    def fail(batch: FakeBatch) -> None:
        batch.status = "failed"
        batch.errors = [{"code": "invalid_row", "message": "line 2 is bad", "line": 2}]

    batch_server.on_look = fail
    with Client(batch_server.url) as client:
        results = list(client.batches.run(["a", "b"], order="input"))
    assert [result.error and result.error.code for result in results] == ["batch_failed", "invalid_row"]


def test_rows_that_a_cancelled_batch_did_not_reach_are_errors(batch_server: FakeBatchServer) -> None:
    with Client(batch_server.url) as client:
        run = client.batches.run(PROMPTS)
        results = [next(run)]
        client.batches.cancel(run.batch_ids[0])
        results += run
    assert [result.error.code for result in results if result.error] == ["batch_cancelled"] * 5
    assert sorted(result.index or 0 for result in results) == list(range(7))


async def test_the_async_run_takes_either_kind_of_iterable(batch_server: FakeBatchServer) -> None:
    async def requests() -> AsyncIterator[str]:
        for prompt in PROMPTS:
            yield prompt

    async with AsyncClient(batch_server.url) as client:
        results = [result async for result in client.batches.run(requests(), rows_per_batch=3)]
        assert sorted(texts(results)) == ANSWERS
        async with client.batches.run(iter(PROMPTS), order="input") as run:
            assert texts([result async for result in run]) == ANSWERS
        assert (await client.batches.wait(run.batch_ids[0])).status == "completed"
        assert len([batch async for batch in client.batches.list()]) == 4
        batch = await client.batches.create(next(iter(batch_server.files)))
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        assert (await client.batches.retrieve(batch.id)).status == "cancelled"


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_happens_on_the_way_each_request_has_one_result(data: st.DataObject) -> None:
    prompts = data.draw(st.lists(st.sampled_from(["a", "refuse", "ü\n"]), max_size=12))
    order: Any = data.draw(st.sampled_from(["as_completed", "input"]))
    server = FakeBatchServer(
        has_feed=data.draw(st.booleans()),
        has_ranges=data.draw(st.booleans()),
        keeps_rows=data.draw(st.booleans()),
        rows_per_look=data.draw(st.integers(1, 5)),
        max_open=data.draw(st.integers(1, 3)),
        room=data.draw(st.integers(1, 3)),
        breaks=data.draw(st.lists(st.integers(0, 300), max_size=4)),
        silences=data.draw(st.integers(0, 2)),
        ends_as=data.draw(st.sampled_from(["completed", "expired"])),
    )
    with server, Client(server.url) as client:
        results = list(client.batches.run(prompts, order=order, rows_per_batch=data.draw(st.integers(1, 5))))
    found = [(result.index, result.is_ok) for result in results]
    expected = [(index, prompt != "refuse") for index, prompt in enumerate(prompts)]
    assert (found if order == "input" else sorted(found)) == expected
