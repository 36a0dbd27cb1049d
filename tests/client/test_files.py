"""Files: uploaded piece by piece, read back whole, in lines, or after a break."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

import hocket
from fakes.batch_server import FakeBatchServer
from fakes.http_script import Script, refusal
from hocket import AsyncClient, Client

pytestmark = pytest.mark.usefixtures("no_naps")


def sources(folder: Path, content: bytes) -> dict[str, Any]:
    path = folder / 'a "b".jsonl'
    path.write_bytes(content)
    return {"path": path, "string": str(path), "bytes": content, "file": io.BytesIO(content)}


@pytest.mark.parametrize("kind", ["path", "string", "bytes", "file"])
def test_whatever_holds_bytes_is_uploaded(kind: str, batch_server: FakeBatchServer, tmp_path: Path) -> None:
    content = os.urandom(700_000)
    progress: list[tuple[int, int | None]] = []
    with Client(batch_server.url) as client:
        source = sources(tmp_path, content)[kind]
        file = client.files.create(source, on_progress=lambda sent, total: progress.append((sent, total)))
        assert client.files.content(file.id) == content
        assert client.files.retrieve(file.id) == file
    assert (file.bytes, file.purpose) == (700_000, "batch")
    assert progress[-1] == (700_000, 700_000)
    assert [sent for sent, _ in progress] == sorted(sent for sent, _ in progress)
    assert len(progress) == 3
    if kind == "path":
        assert "b" in file.filename


async def test_the_async_client_uploads_and_reads_alike(batch_server: FakeBatchServer, tmp_path: Path) -> None:
    content = os.urandom(700_000)
    async with AsyncClient(batch_server.url) as client:
        for source in sources(tmp_path, content).values():
            file = await client.files.create(source, expires_after=3600)
            assert file.expires_at == 3601
            assert await client.files.content(file.id) == content
        assert len([file async for file in client.files.list()]) == 4
        assert await client.files.delete(file.id)
        path = await client.files.download((await anext(client.files.list())).id, tmp_path / "out")
        assert path.read_bytes() == content


def test_a_stream_that_cannot_go_back_is_sent_without_its_length(batch_server: FakeBatchServer) -> None:
    reading, writing = os.pipe()
    threading.Thread(target=lambda: (os.write(writing, b"one\ntwo\n"), os.close(writing))).start()
    with Client(batch_server.url) as client, os.fdopen(reading, "rb") as pipe:
        file = client.files.create(pipe, filename="rows.jsonl")
        assert list(client.files.lines(file.id)) == ["one", "two"]


def test_a_refused_upload_is_repeated_from_where_the_file_stood() -> None:
    script = Script(refusal(503, retry_after="0"), httpx.Response(200, json={"id": "file-1"}))
    file = io.BytesIO(b"skipped, sent")
    file.seek(9)
    with Client("http://server", transport=script) as client:
        client.files.create(file)
    assert [request.content.split(b"\r\n")[-3] for request in script.requests] == [b"sent", b"sent"]
    assert script.requests[0].headers["content-length"] == str(len(script.requests[0].content))


def test_a_stream_that_cannot_go_back_is_not_repeated() -> None:
    script = Script(refusal(503, retry_after="0"))
    reading, writing = os.pipe()
    os.close(writing)
    with (
        Client("http://server", transport=script) as client,
        os.fdopen(reading, "rb") as pipe,
        pytest.raises(hocket.ServiceUnavailableError),
    ):
        client.files.create(pipe)


def test_a_file_that_is_not_there_is_the_callers_error() -> None:
    with Client("http://server", transport=Script()) as client, pytest.raises(FileNotFoundError):
        client.files.create("no-such-file.jsonl")


def test_lists_turn_their_pages(batch_server: FakeBatchServer) -> None:
    ids = [batch_server.add_file(b"") for _ in range(8)]
    with Client(batch_server.url) as client:
        assert [file.id for file in client.files.list()] == ids
        assert [file.id for file in client.files.list(limit=4)] == ids[:4]
        assert [file.id for file in client.files.list(after=ids[5])] == ids[6:]
        assert list(client.files.list(purpose="other")) == []


LINES = [f"line {number} " + "x" * number for number in range(300)]


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_connection_that_breaks_is_taken_up_where_it_broke(
    has_ranges: bool, batch_server: FakeBatchServer, tmp_path: Path
) -> None:
    content = "\n".join(LINES).encode()
    file_id = batch_server.add_file(content)
    batch_server.has_ranges = has_ranges
    with Client(batch_server.url) as client:
        batch_server.breaks = [1000, 7, 20_000] if has_ranges else [1000, 5000, 20_000]
        assert client.files.content(file_id) == content
        batch_server.breaks = [1000, 20_000]
        assert list(client.files.lines(file_id)) == LINES
        batch_server.breaks = [1000, 20_000]
        client.files.download(file_id, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content
    assert batch_server.breaks == []


def test_a_download_goes_on_where_an_earlier_one_ended(batch_server: FakeBatchServer, tmp_path: Path) -> None:
    content = os.urandom(100_000)
    file_id = batch_server.add_file(content)
    batch_server.breaks = [40_000] + [0] * 6
    path = tmp_path / "out"
    progress: list[tuple[int, int | None]] = []
    with Client(batch_server.url) as client:
        with pytest.raises(hocket.APIConnectionError):
            client.files.download(file_id, path)
        assert not path.exists()
        client.files.download(file_id, path, on_progress=lambda *now: progress.append(now))
    assert path.read_bytes() == content
    assert progress[0][0] > 40_000
    assert progress[-1] == (100_000, 100_000)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_leaving_lines_early_closes_the_connection_and_no_more(batch_server: FakeBatchServer) -> None:
    file_id = batch_server.add_file(b"one\ntwo\n" * 100_000)
    with Client(batch_server.url) as client:
        lines = client.files.lines(file_id)
        assert next(lines) == "one"
        lines.close()  # type: ignore[attr-defined]
        assert client.files.retrieve(file_id).bytes == 800_000


@pytest.mark.parametrize(
    ("content", "lines"),
    [(b"", []), (b"a", ["a"]), (b"a\n", ["a"]), (b"a\n\nb\n", ["a", "", "b"]), ("ä\nß".encode(), ["ä", "ß"])],
)
async def test_lines_end_at_newlines(content: bytes, lines: list[str], batch_server: FakeBatchServer) -> None:
    file_id = batch_server.add_file(content)
    with Client(batch_server.url) as client:
        assert await asyncio.to_thread(lambda: list(client.files.lines(file_id))) == lines
    async with AsyncClient(batch_server.url) as other:
        assert [line async for line in other.files.lines(file_id)] == lines


def test_no_such_file_is_not_found(batch_server: FakeBatchServer) -> None:
    with Client(batch_server.url) as client, pytest.raises(hocket.NotFoundError):
        client.files.content("file-x")
