from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient

from fakes.fake_engine import FakeEngine
from fakes.offline_rows import result
from gateway.offline.store.records import BatchStatus
from gateway.offline.store.store import OfflineStore
from gateway.services import SERVICES

CHAT = "/v1/chat/completions"


@pytest.fixture
async def client(serve: Any, tmp_path: Path) -> TestClient[Any, Any]:
    made: TestClient[Any, Any] = await serve(
        FakeEngine(is_ready=False), data_dir=str(tmp_path / "data"), max_batch_rows=100
    )
    return made


def store_of(client: TestClient[Any, Any]) -> OfflineStore:
    store = client.app[SERVICES].offline
    assert store is not None
    return store


def row(custom_id: Any = "r", **changes: Any) -> bytes:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]} | changes.pop("body", {})
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | changes).encode()


async def post(client: TestClient[Any, Any], content: bytes, **changes: Any) -> aiohttp.ClientResponse:
    form = aiohttp.FormData({"purpose": "batch"}, default_to_multipart=True)
    form.add_field("file", content, filename="rows.jsonl")
    file = await (await client.post("/v1/files", data=form)).json()
    body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"} | changes
    return await client.post("/v1/batches", json=body)


async def submit(client: TestClient[Any, Any], content: bytes, **changes: Any) -> dict[str, Any]:
    """The batch once its validation has ended."""
    response = await post(client, content, **changes)
    assert response.status == 200, await response.text()
    batch = await response.json()
    assert batch["status"] == "validating"
    return await settled(client, batch["id"], "validating")


async def settled(client: TestClient[Any, Any], batch_id: str, *passing: str) -> dict[str, Any]:
    while True:
        batch: dict[str, Any] = await (await client.get(f"/v1/batches/{batch_id}")).json()
        if batch["status"] not in passing:
            return batch
        await asyncio.sleep(0.01)


async def content(client: TestClient[Any, Any], file_id: str) -> list[dict[str, Any]]:
    text = await (await client.get(f"/v1/files/{file_id}/content")).text()
    return [json.loads(line) for line in text.splitlines()]


async def refusal(response: aiohttp.ClientResponse, status: int) -> dict[str, Any]:
    assert response.status == status, await response.text()
    error: dict[str, Any] = (await response.json())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


async def test_good_file_goes_in_progress(client: TestClient[Any, Any]) -> None:
    lines = [row(f"r{i}") for i in range(3)]
    batch = await submit(client, b"\xef\xbb\xbf" + lines[0] + b"\r\n\n" + lines[1] + b"\n  \n" + lines[2])
    assert (batch["status"], batch["model"], batch["errors"]) == ("in_progress", "demo", None)
    assert batch["request_counts"] == {"total": 3, "completed": 0, "failed": 0}
    assert batch["expires_at"] == batch["created_at"] + 86400
    rows = await store_of(client).pending_rows(batch["id"])
    assert [(r.index, r.custom_id) for r in rows] == [(0, "r0"), (2, "r1"), (4, "r2")]
    assert all(json.loads(r.body)["messages"][0]["content"] == "Hello" for r in rows)


BAD = [
    (b"not json", "invalid_json_line", None),
    (b"[1]", "invalid_json_line", None),
    (b'{"custom_id": "\xff"}', "invalid_json_line", None),
    (row(None), "missing_required_parameter", "custom_id"),
    (row(7), "invalid_custom_id", "custom_id"),
    (row(""), "invalid_custom_id", "custom_id"),
    (row("good"), "duplicate_custom_id", "custom_id"),
    (row("a", method="GET"), "invalid_method", "method"),
    (row("b", url="/v1/completions"), "invalid_url", "url"),
    (b'{"custom_id": "c", "method": "POST", "url": "/v1/chat/completions"}', "missing_required_parameter", "body"),
    (row("d", body={"messages": []}), "invalid_value", "body.messages"),
    (row("e", body={"max_tokens": -1}), "invalid_value", "body.max_tokens"),
    (row("f", body={"model": "gpt-5"}), "model_not_found", "body.model"),
    (row("g", body={"stream": True}), "unsupported", "body.stream"),
    (row("h", body={"tools": [{"type": "function"}]}), "missing_parameter", "body.tools[0].function"),
]


async def test_bad_lines_are_reported_by_number_and_the_good_one_runs(client: TestClient[Any, Any]) -> None:
    batch = await submit(client, b"\n".join([row("good"), *(line for line, _, _ in BAD)]))
    assert batch["status"] == "in_progress"
    assert batch["request_counts"] == {"total": 16, "completed": 0, "failed": 15}
    found = [(error["line"], error["code"], error["param"]) for error in batch["errors"]["data"]]
    assert found == [(i + 2, code, param) for i, (_, code, param) in enumerate(BAD)]
    store = store_of(client)
    assert [r.custom_id for r in await store.pending_rows(batch["id"])] == ["good"]
    ended = await store.finalize(batch["id"], BatchStatus.EXPIRED)
    assert ended.error_file_id is not None
    lines = await content(client, ended.error_file_id)
    assert [line["error"]["code"] for line in lines] == ["batch_expired", *(code for _, code, _ in BAD)]
    assert [line["error"].get("line") for line in lines[1:]] == list(range(2, 17))


async def test_batch_without_a_good_line_fails_with_an_error_file(client: TestClient[Any, Any]) -> None:
    batch = await submit(client, b"x\ny\n")
    batch = await settled(client, batch["id"], "validating")
    assert batch["status"] == "failed"
    assert [error["line"] for error in batch["errors"]["data"]] == [1, 2]
    assert batch["failed_at"] >= batch["created_at"]
    assert len(await content(client, batch["error_file_id"])) == 2
    assert batch["output_file_id"] is None


@pytest.mark.parametrize(
    ("lines", "code"),
    [([], "empty_file"), ([b"", b" "], "empty_file"), ([row(f"r{i}") for i in range(101)], "too_many_rows")],
)
async def test_file_that_may_not_run(client: TestClient[Any, Any], lines: list[bytes], code: str) -> None:
    batch = await submit(client, b"\n".join(lines))
    assert batch["status"] == "failed"
    assert [error["code"] for error in batch["errors"]["data"]] == [code]
    assert batch["request_counts"]["total"] == 0


async def test_line_that_is_too_long_is_one_bad_line(serve: Any, tmp_path: Path) -> None:
    client = await serve(FakeEngine(is_ready=False), data_dir=str(tmp_path / "data"), max_body_bytes=1000)
    long = row("long", body={"user": "x" * 5000})
    batch = await submit(client, b"\n".join([row("a"), long, row("b")]))
    assert [(error["line"], error["code"]) for error in batch["errors"]["data"]] == [(2, "line_too_long")]
    assert [r.custom_id for r in await store_of(client).pending_rows(batch["id"])] == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": None}, "completion_window"),
        ({"metadata": {f"k{i}": "v" for i in range(17)}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata[...]"),
        ({"metadata": {"k": "v" * 513}}, "metadata[...]"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
    ],
)
async def test_wrong_parameters_are_named(client: TestClient[Any, Any], changes: dict[str, Any], param: str) -> None:
    assert (await refusal(await post(client, row(), **changes), 400))["param"] == param


async def test_unknown_and_unfit_files_are_refused(client: TestClient[Any, Any]) -> None:
    await refusal(await post(client, row(), input_file_id="file-none"), 404)
    form = aiohttp.FormData({"purpose": "user_data"}, default_to_multipart=True)
    form.add_field("file", row(), filename="a")
    file = await (await client.post("/v1/files", data=form)).json()
    assert (await refusal(await post(client, row(), input_file_id=file["id"]), 400))["param"] == "input_file_id"


@pytest.mark.parametrize(("window", "seconds"), [("30m", 1800), ("7d", 604800), ("90s", 90)])
async def test_other_windows_are_honoured(client: TestClient[Any, Any], window: str, seconds: int) -> None:
    batch = await submit(client, row(), completion_window=window, metadata={"job": "night"})
    assert batch["completion_window"] == window
    assert batch["expires_at"] - batch["created_at"] == seconds
    assert batch["metadata"] == {"job": "night"}


async def test_list_and_cancel(client: TestClient[Any, Any]) -> None:
    first, second = [await submit(client, row()) for _ in range(2)]
    page = await (await client.get("/v1/batches?limit=1")).json()
    assert ([batch["id"] for batch in page["data"]], page["has_more"]) == ([second["id"]], True)
    rest = await (await client.get(f"/v1/batches?after={page['last_id']}")).json()
    assert [batch["id"] for batch in rest["data"]] == [first["id"]]
    await refusal(await client.get("/v1/batches?limit=101"), 400)
    await refusal(await client.delete(f"/v1/files/{first['input_file_id']}"), 409)
    cancelled = await (await client.post(f"/v1/batches/{first['id']}/cancel")).json()
    assert cancelled["status"] in ("cancelling", "cancelled")
    assert cancelled["cancelling_at"] is not None
    await store_of(client).finalize(first["id"], BatchStatus.CANCELLED)
    await refusal(await client.post(f"/v1/batches/{first['id']}/cancel"), 409)
    await refusal(await client.post("/v1/batches/batch_none/cancel"), 404)


async def test_cancelled_while_validating(client: TestClient[Any, Any]) -> None:
    batch = await (await post(client, b"\n".join(row(f"r{i}") for i in range(100)))).json()
    await client.post(f"/v1/batches/{batch['id']}/cancel")
    store = store_of(client)
    while (await store.batch("", batch["id"])).in_progress_at is None:  # or it was too late, then nobody runs its rows
        if (await store.batch("", batch["id"])).status is BatchStatus.CANCELLED:
            break
        await asyncio.sleep(0.01)
    else:
        await store.finalize(batch["id"], BatchStatus.CANCELLED)
    assert (await settled(client, batch["id"], "cancelling"))["status"] == "cancelled"


async def test_rows_beyond_the_quota_fail_the_batch(serve: Any, tmp_path: Path) -> None:
    client = await serve(FakeEngine(is_ready=False), data_dir=str(tmp_path / "data"), max_pending_rows=3)
    await submit(client, b"\n".join(row(f"r{i}") for i in range(2)))
    batch = await submit(client, b"\n".join(row(f"r{i}") for i in range(2)))
    assert batch["status"] == "failed"
    assert [error["code"] for error in batch["errors"]["data"]] == ["rows_quota_exceeded"]
    await submit(client, row("r0"))
    error = await refusal(await post(client, row()), 429)
    assert error["code"] == "rows_quota_exceeded"


async def test_tenants_see_their_own_batches(serve: Any, tmp_path: Path) -> None:
    mine, other = ({"Authorization": f"Bearer {key}"} for key in "ab")
    client = await serve(FakeEngine(is_ready=False), data_dir=str(tmp_path / "data"), api_keys=("a", "b"), headers=mine)
    batch = await submit(client, row())
    for method, path in (("GET", ""), ("POST", "/cancel"), ("GET", "/results")):
        response = await client.request(method, f"/v1/batches/{batch['id']}{path}", headers=other)
        await refusal(response, 404)
    assert (await (await client.get("/v1/batches", headers=other)).json())["data"] == []
    body = {"input_file_id": batch["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
    await refusal(await client.post("/v1/batches", json=body, headers=other), 404)


async def test_results_can_be_read_as_they_land(client: TestClient[Any, Any]) -> None:
    batch = await submit(client, b"\n".join(row(f"r{i}") for i in range(3)))
    store = store_of(client)
    record = await store.batch("", batch["id"])
    await store.finish_rows([result(record, 2)])
    page = await (await client.get(f"/v1/batches/{batch['id']}/results")).json()
    assert ([line["row"] for line in page["data"]], page["has_more"]) == ([2], False)
    assert page["batch"]["request_counts"]["completed"] == 1
    await store.finish_rows([result(record, 0), result(record, 1)])
    page = await (await client.get(f"/v1/batches/{batch['id']}/results?after={page['cursor']}&limit=1")).json()
    assert ([line["row"] for line in page["data"]], page["has_more"]) == ([0], True)


async def test_a_webhook_that_cannot_be_told_is_refused_at_once(serve: Any, tmp_path: Path) -> None:
    for number, secrets in enumerate([(), ("whsec_" + "A" * 43 + "=",)]):
        client = await serve(FakeEngine(), data_dir=str(tmp_path / str(number)), webhook_secrets=secrets)
        response = await post(client, row(), metadata={"webhook_url": "http://localhost/"})
        error = (await response.json())["error"]
        assert (response.status, error["param"]) == (400, "metadata.webhook_url")
        assert error["code"] == ("private_address" if secrets else "webhooks_not_configured")
