"""Uploads that are slow, many, endless or meet a full disk: what they take is bounded, and given back."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine
from gateway.config.tenants import tenant_of
from gateway.offline.store.upload import Upload
from gateway.services import SERVICES

QUOTA = 4_000_000
PIECE = bytes(100_000)
FORM = {"Content-Type": "multipart/form-data; boundary=x"}
ALICE, BOB = ({"Authorization": f"Bearer {key}"} for key in ("alice", "bob"))


@pytest.fixture
async def client(serve: Any, tmp_path: Path) -> Any:
    return await serve(
        FakeEngine(),
        data_dir=str(tmp_path / "data"),
        api_keys=("alice", "bob"),
        max_stored_bytes=QUOTA,
        max_file_bytes=100 * QUOTA,
        max_batch_file_bytes=100 * QUOTA,
    )


async def pieces(num_pieces: int, until: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    for _ in range(num_pieces):
        yield PIECE
    if until is not None:
        await until.wait()
    yield b"\r\n--x--\r\n"


def bytes_in_parts(tmp_path: Path) -> int:
    num_bytes = 0
    for path in (tmp_path / "data" / "parts").iterdir():
        with contextlib.suppress(FileNotFoundError):  # just deleted
            num_bytes += path.stat().st_size
    return num_bytes


async def stored(client: Any, key: str) -> int:
    store = client.server.app[SERVICES].offline
    return int((await store.usage(tenant_of(key))).num_bytes)


async def upload(client: Any, size: int, headers: dict[str, str]) -> int:
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", io.BytesIO(bytes(size)), filename="a")
    return int((await client.post("/v1/files", data=form, headers=headers)).status)


async def test_an_endless_upload_is_refused_while_it_comes(client: Any, tmp_path: Path) -> None:
    never = asyncio.Event()
    response = await client.post("/v1/files", data=pieces(60, never), headers=FORM | ALICE)
    assert response.status == 429
    assert (await response.json())["error"]["code"] == "storage_quota_exceeded"
    await eventually(lambda: bytes_in_parts(tmp_path) == 0)
    assert await stored(client, "alice") == 0
    assert await upload(client, 3_000_000, ALICE) == 200


async def test_slow_uploads_side_by_side_share_one_quota(client: Any, tmp_path: Path) -> None:
    """Six that never end, each with most of the quota: another tenant stores what it wants meanwhile."""
    go_on = asyncio.Event()
    statuses: list[int] = []

    async def send() -> None:
        response = await client.post("/v1/files", data=pieces(30, go_on), headers=FORM | ALICE)
        statuses.append(response.status)

    async with AsyncExitStack() as stack:
        sending = [asyncio.create_task(send()) for _ in range(6)]
        stack.callback(go_on.set)
        await eventually(lambda: len(statuses) >= 5)
        assert set(statuses) == {429}
        assert bytes_in_parts(tmp_path) <= QUOTA
        assert await upload(client, 3_000_000, BOB) == 200
    await asyncio.gather(*sending)
    assert bytes_in_parts(tmp_path) == 0
    assert await stored(client, "alice") <= QUOTA


async def test_clients_that_go_away_give_back_what_they_took(client: Any, tmp_path: Path) -> None:
    never = asyncio.Event()
    for _ in range(5):
        sending = asyncio.create_task(client.post("/v1/files", data=pieces(30, never), headers=FORM | ALICE))
        await eventually(lambda: bytes_in_parts(tmp_path) > 1_000_000)
        sending.cancel()
        await eventually(lambda: bytes_in_parts(tmp_path) == 0)
    await given_back(client)
    assert await upload(client, 3_000_000, ALICE) == 200


async def given_back(client: Any) -> None:
    async with asyncio.timeout(20):
        while await stored(client, "alice"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("when", ["_flush", "_publish"])
async def test_a_full_disk_gives_back_what_the_upload_took(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    work: Callable[..., None] = getattr(Upload, when)
    num_full = 2

    def fill(upload: Upload, *arguments: Any) -> None:
        nonlocal num_full
        if num_full:
            num_full -= 1
            upload._discard()
            raise OSError(errno.ENOSPC, "No space left on device")
        work(upload, *arguments)

    monkeypatch.setattr(Upload, when, fill)
    assert await upload(client, 3_000_000, ALICE) == 507
    assert await upload(client, 3_000_000, ALICE) == 507
    await given_back(client)
    assert bytes_in_parts(tmp_path) == 0
    assert await upload(client, 3_000_000, ALICE) == 200


async def test_whoever_is_over_its_quota_is_refused_before_a_byte_is_kept(client: Any, tmp_path: Path) -> None:
    assert await upload(client, QUOTA - 5000, ALICE) == 200
    assert await upload(client, 1, ALICE) == 429
    files = (await (await client.get("/v1/files", headers=ALICE)).json())["data"]
    body = {"input_file_id": files[0]["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    response = await client.post("/v1/batches", json=body, headers=ALICE)
    assert (response.status, (await response.json())["error"]["code"]) == (429, "storage_quota_exceeded")
    await client.delete(f"/v1/files/{files[0]['id']}", headers=ALICE)
    assert await upload(client, 1, ALICE) == 200
