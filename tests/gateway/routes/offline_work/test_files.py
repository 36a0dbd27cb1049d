from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient

from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine


@pytest.fixture
async def client(serve: Any, tmp_path: Path) -> TestClient[Any, Any]:
    made: TestClient[Any, Any] = await serve(
        FakeEngine(), data_dir=str(tmp_path / "data"), max_file_bytes=3_000_000, max_batch_file_bytes=2_000_000
    )
    return made


def form(content: bytes = b"a file", name: str = "rows.jsonl", **fields: str) -> aiohttp.FormData:
    data = aiohttp.FormData(quote_fields=False)
    for key, value in fields.items():
        data.add_field(key, value)
    data.add_field("file", io.BytesIO(content), filename=name)
    return data


async def upload(client: TestClient[Any, Any], *arguments: Any, **fields: str) -> dict[str, Any]:
    response = await client.post("/v1/files", data=form(*arguments, **({"purpose": "batch"} | fields)))
    assert response.status == 200, await response.text()
    return await response.json()  # type: ignore[no-any-return]


async def refusal(response: aiohttp.ClientResponse, status: int) -> dict[str, Any]:
    assert response.status == status, await response.text()
    error: dict[str, Any] = (await response.json())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


async def test_file_comes_back_as_it_was_sent(client: TestClient[Any, Any]) -> None:
    content = bytes(range(256)) * 5000
    file = await upload(client, content, "täst 1.jsonl", purpose="user_data")
    assert (file["object"], file["bytes"], file["filename"]) == ("file", len(content), "täst 1.jsonl")
    assert file["expires_at"] is None
    assert await (await client.get(f"/v1/files/{file['id']}")).json() == file
    response = await client.get(f"/v1/files/{file['id']}/content")
    assert await response.read() == content


@pytest.mark.parametrize(
    ("asked", "slice_of_it"), [("bytes=2-5", slice(2, 6)), ("bytes=7-", slice(7, None)), ("bytes=-3", slice(-3, None))]
)
async def test_content_has_ranges(client: TestClient[Any, Any], asked: str, slice_of_it: slice) -> None:
    file = await upload(client, b"0123456789")
    response = await client.get(f"/v1/files/{file['id']}/content", headers={"Range": asked})
    assert response.status == 206
    assert await response.read() == b"0123456789"[slice_of_it]


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=5-2", "lines=1-2"])
async def test_wrong_ranges_are_refused(client: TestClient[Any, Any], asked: str) -> None:
    file = await upload(client, b"0123456789")
    response = await client.get(f"/v1/files/{file['id']}/content", headers={"Range": asked})
    error = await refusal(response, 416)
    assert error["code"] == "range_not_satisfiable"
    assert response.headers["Content-Range"] == "bytes */10"


async def test_deleted_file_is_gone(client: TestClient[Any, Any], tmp_path: Path) -> None:
    file = await upload(client)
    response = await client.delete(f"/v1/files/{file['id']}")
    assert await response.json() == {"id": file["id"], "object": "file", "deleted": True}
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        await refusal(await client.request(method, f"/v1/files/{file['id']}{path}"), 404)
    assert not list((tmp_path / "data" / "files").iterdir())


async def test_list_by_purpose_and_page(client: TestClient[Any, Any]) -> None:
    ids = [(await upload(client, purpose=purpose))["id"] for purpose in ("batch", "user_data", "batch")]
    newest_first = await (await client.get("/v1/files")).json()
    assert [file["id"] for file in newest_first["data"]] == ids[::-1]
    assert newest_first["has_more"] is False
    page = await (await client.get("/v1/files?limit=1&order=asc&purpose=batch")).json()
    assert ([file["id"] for file in page["data"]], page["has_more"]) == (ids[:1], True)
    rest = await (await client.get(f"/v1/files?order=asc&purpose=batch&after={page['last_id']}")).json()
    assert [file["id"] for file in rest["data"]] == ids[2:]


async def test_batch_files_expire_after_thirty_days_unless_asked_otherwise(client: TestClient[Any, Any]) -> None:
    file = await upload(client)
    assert file["expires_at"] == file["created_at"] + 30 * 86400
    fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = await upload(client, **fields)
    assert file["expires_at"] == file["created_at"] + 3600


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "purpose"),
        ({"purpose": "fun"}, "purpose"),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        ({"purpose": "batch", "expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "60"},
            "expires_after[seconds]",
        ),
    ],
)
async def test_wrong_fields_are_named(client: TestClient[Any, Any], fields: dict[str, str], param: str) -> None:
    assert (await refusal(await client.post("/v1/files", data=form(**fields)), 400))["param"] == param


async def test_wrong_forms_are_refused(client: TestClient[Any, Any], tmp_path: Path) -> None:
    await refusal(await client.post("/v1/files", json={"file": "x"}), 415)
    without_file = aiohttp.FormData({"purpose": "batch"}, default_to_multipart=True)
    assert (await refusal(await client.post("/v1/files", data=without_file), 400))["param"] == "file"
    headers = {"Content-Type": "multipart/form-data"}
    await refusal(await client.post("/v1/files", data=b"--x\r\n", headers=headers), 400)
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    await refusal(await client.post("/v1/files", data=b"--y\r\n\r\n", headers=headers), 400)
    for query in ("limit=0", "limit=x", "order=up", "after=file-none"):
        await refusal(await client.get(f"/v1/files?{query}"), 400)
    assert not list((tmp_path / "data" / "parts").iterdir())


async def test_pages_of_another_site_may_not_upload(client: TestClient[Any, Any]) -> None:
    headers = {"Origin": "https://elsewhere.example"}
    response = await client.post("/v1/files", data=form(purpose="batch"), headers=headers)
    assert (await refusal(response, 403))["code"] == "origin_not_allowed"


async def test_large_files_are_refused_and_leave_nothing(client: TestClient[Any, Any], tmp_path: Path) -> None:
    response = await client.post("/v1/files", data=form(bytes(2_000_001), purpose="batch"))
    assert (await refusal(response, 413))["code"] == "file_too_large"
    await upload(client, bytes(2_000_001), purpose="user_data")
    response = await client.post("/v1/files", data=form(bytes(3_000_001), purpose="user_data"))
    await refusal(response, 413)
    assert not list((tmp_path / "data" / "parts").iterdir())


async def test_quota_of_bytes(serve: Any, tmp_path: Path) -> None:
    client = await serve(FakeEngine(), data_dir=str(tmp_path / "data"), max_stored_bytes=8400)
    await upload(client, b"123456" * 20)
    error = await refusal(await client.post("/v1/files", data=form(b"123456" * 20, purpose="batch")), 429)
    assert (error["type"], error["code"]) == ("insufficient_quota", "storage_quota_exceeded")


async def test_client_that_goes_away_leaves_nothing(client: TestClient[Any, Any], tmp_path: Path) -> None:
    has_begun = asyncio.Event()

    async def endless() -> Any:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(20):
            yield bytes(50_000)
        has_begun.set()
        await asyncio.Event().wait()

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    sending = asyncio.create_task(client.post("/v1/files", data=endless(), headers=headers))
    await has_begun.wait()
    parts = tmp_path / "data" / "parts"
    await eventually(lambda: bool(list(parts.iterdir())))
    sending.cancel()
    await eventually(lambda: not list(parts.iterdir()))
    assert (await (await client.get("/v1/files")).json())["data"] == []


async def test_tenants_see_their_own_files(serve: Any, tmp_path: Path) -> None:
    client = await serve(FakeEngine(), data_dir=str(tmp_path / "data"), api_keys=("a", "b"))
    mine, other = ({"Authorization": f"Bearer {key}"} for key in "ab")
    file = await (await client.post("/v1/files", data=form(purpose="batch"), headers=mine)).json()
    assert (await client.get(f"/v1/files/{file['id']}", headers=mine)).status == 200
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        await refusal(await client.request(method, f"/v1/files/{file['id']}{path}", headers=other), 404)
    assert (await (await client.get("/v1/files", headers=other)).json())["data"] == []


async def test_server_without_a_store_says_so(serve: Any) -> None:
    client = await serve(FakeEngine())
    for path in ("/v1/files", "/v1/batches"):
        assert (await refusal(await client.get(path), 404))["code"] == "offline_disabled"
