"""Files and batches without a model or a disk, on a real socket, in a thread of its own.

A row is answered with "You said: <prompt>", or refused if its prompt contains "refuse". Work is done only while
somebody looks: each look at a batch finishes `rows_per_look` rows, the last ones of the input first.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

TERMINAL = ("completed", "failed", "expired", "cancelled")


@dataclass
class FakeBatch:
    id: str
    body: dict[str, Any]
    rows: list[dict[str, Any]]
    status: str = "in_progress"
    landed: list[dict[str, Any]] = field(default_factory=list)  # lines, in the order in which they finished
    files: dict[str, str] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)

    def shown(self) -> dict[str, Any]:
        failed = sum(line["response"]["status_code"] != 200 for line in self.landed)
        counts = {"total": len(self.rows), "completed": len(self.landed) - failed, "failed": failed}
        keys = ("endpoint", "input_file_id", "completion_window")
        return {
            **{key: self.body[key] for key in keys},
            "metadata": self.body.get("metadata"),
            "id": self.id,
            "object": "batch",
            "created_at": 1_700_000_000,
            "in_progress_at": 1_700_000_001,
            "expires_at": 1_700_086_400,
            f"{self.status}_at": 1_700_000_060,
            "status": self.status,
            "request_counts": counts,
            "usage": {"input_tokens": 2 * counts["completed"], "output_tokens": 3 * counts["completed"]},
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            **self.files,
        }


@dataclass
class FakeBatchServer:
    has_feed: bool = True
    has_ranges: bool = True
    rows_per_look: int = 2
    max_open: int = 1000  # more open batches than this are refused with 429
    room: int = 1000  # batches beyond so many open ones fail when they are first looked at
    keeps_rows: bool = True  # the feed still knows a batch that has ended
    ends_as: str = "completed"  # what batches become when all rows have landed
    breaks: list[int] = field(default_factory=list)  # the next contents are cut off after so many bytes
    silences: int = 0  # so many batches are created without an answer
    illness: str = ""  # what /health says
    files: dict[str, bytes] = field(default_factory=dict)
    names: dict[str, dict[str, Any]] = field(default_factory=dict)
    batches: dict[str, FakeBatch] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)  # "GET /v1/batches"
    on_look: Callable[[FakeBatch], None] = lambda batch: None
    url: str = ""

    def __enter__(self) -> Self:
        started: threading.Event = threading.Event()
        self._numbers = itertools.count(1)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)))
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    async def _serve(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        app = web.Application(middlewares=[self._gate], client_max_size=2**30)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.post("/v1/files", self._create_file),
                web.get("/v1/files", self._list_files),
                web.get("/v1/files/{id}", self._get_file),
                web.delete("/v1/files/{id}", self._delete_file),
                web.get("/v1/files/{id}/content", self._content),
                web.post("/v1/batches", self._create_batch),
                web.get("/v1/batches", self._list_batches),
                web.get("/v1/batches/{id}", self._get_batch),
                web.post("/v1/batches/{id}/cancel", self._cancel),
            ]
        )
        if self.has_feed:
            app.add_routes([web.get("/v1/batches/{id}/results", self._results)])
        runner = web.AppRunner(app, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        started.set()
        await self._stop.wait()
        await runner.cleanup()

    @web.middleware
    async def _gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.seen.append(f"{request.method} {request.path}")
        named = request.match_info.get("id")
        if named is not None and named not in self.files and named not in self.batches:
            return error(404, f"No such object: {named}")
        response: web.StreamResponse = await handler(request)
        return response

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "x", "reason": self.illness}, status=503 if self.illness else 200)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "list", "data": [{"id": "demo"}]})

    # ---- files ----

    def add_file(self, content: bytes, **about: Any) -> str:
        file_id = f"file-{next(self._numbers)}"
        self.files[file_id] = content
        self.names[file_id] = {
            "id": file_id,
            "object": "file",
            "bytes": len(content),
            "created_at": 1,
            "filename": "x",
            "purpose": "batch",
            **about,
        }
        return file_id

    async def _create_file(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        upload = form["file"]
        assert isinstance(upload, web.FileField)
        expiry = (
            {"expires_at": 1 + int(str(form["expires_after[seconds]"]))} if "expires_after[seconds]" in form else {}
        )
        file_id = self.add_file(upload.file.read(), filename=upload.filename, purpose=form["purpose"], **expiry)
        return web.json_response(self.names[file_id])

    async def _list_files(self, request: web.Request) -> web.StreamResponse:
        wanted = [file for file in self.names.values() if file["purpose"] == request.query.get("purpose", "batch")]
        return page(request, wanted, 3)

    async def _get_file(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self.names[request.match_info["id"]])

    async def _delete_file(self, request: web.Request) -> web.StreamResponse:
        del self.files[request.match_info["id"]], self.names[request.match_info["id"]]
        return web.json_response({"id": request.match_info["id"], "object": "file", "deleted": True})

    async def _content(self, request: web.Request) -> web.StreamResponse:
        content = self.files[request.match_info["id"]]
        start = 0
        if self.has_ranges and (given := request.headers.get("range")):
            start = int(given.removeprefix("bytes=").removesuffix("-"))
        body = content[start:]
        response = web.StreamResponse(status=206 if start else 200)
        response.content_length = len(body)
        await response.prepare(request)
        if self.breaks:
            await response.write(body[: self.breaks.pop(0)])
            assert request.transport is not None
            await asyncio.sleep(0)  # let the bytes go out first
            request.transport.close()
            return response
        await response.write(body)
        await response.write_eof()
        return response

    # ---- batches ----

    async def _create_batch(self, request: web.Request) -> web.StreamResponse:
        if sum(batch.status not in TERMINAL for batch in self.batches.values()) >= self.max_open:
            return error(429, "Too many batches.", {"retry-after": "0"})
        body = await request.json()
        rows = [json.loads(line) for line in self.files[body["input_file_id"]].splitlines() if line.strip()]
        batch = FakeBatch(f"batch_{next(self._numbers)}", body, rows)
        self.batches[batch.id] = batch
        if self.silences:
            self.silences -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(batch.shown())

    async def _list_batches(self, request: web.Request) -> web.StreamResponse:
        return page(request, [batch.shown() for batch in reversed(self.batches.values())], 2)

    async def _get_batch(self, request: web.Request) -> web.StreamResponse:
        batch = self.batches[request.match_info["id"]]
        self._work(batch)
        return web.json_response(batch.shown())

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        batch = self.batches[request.match_info["id"]]
        if batch.status in TERMINAL:
            return error(409, f"Cannot cancel a batch that is {batch.status}.")
        self._end(batch, "cancelled")
        return web.json_response(batch.shown() | {"status": "cancelling"})

    async def _results(self, request: web.Request) -> web.StreamResponse:
        batch = self.batches[request.match_info["id"]]
        start = int(request.query.get("after", "0"))
        self._work(batch)
        limit = min(int(request.query["limit"]), 3)
        rows = batch.landed[start : start + limit] if self.keeps_rows or batch.status not in TERMINAL else []
        body = {
            "object": "list",
            "data": rows,
            "cursor": str(start + len(rows)),
            "has_more": bool(rows) and start + len(rows) < len(batch.landed),
            "batch": batch.shown(),
        }
        return web.json_response(body)

    def _work(self, batch: FakeBatch) -> None:
        self.on_look(batch)
        if batch.status in TERMINAL:
            return
        num_before = sum(other.status not in TERMINAL for other in self.batches.values() if other.id != batch.id)
        if not batch.landed and num_before >= self.room:
            batch.status = "failed"
            batch.errors = [{"code": "rows_quota_exceeded", "message": "Too many rows wait.", "line": None}]
            return
        done = len(batch.landed)
        for row in batch.rows[::-1][done : done + self.rows_per_look]:
            batch.landed.append(answered(row))
        if len(batch.landed) == len(batch.rows):
            self._end(batch, self.ends_as)

    def _end(self, batch: FakeBatch, status: str) -> None:
        batch.status = status
        good = [line for line in batch.landed if line["response"]["status_code"] == 200]
        bad = [line for line in batch.landed if line["response"]["status_code"] != 200]
        for key, lines in (("output_file_id", good), ("error_file_id", bad)):
            if lines:
                content = "".join(json.dumps(line) + "\n" for line in lines).encode()
                batch.files[key] = self.add_file(content, purpose="batch_output")


def answered(row: dict[str, Any]) -> dict[str, Any]:
    body = row["body"]
    prompt = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
    if "refuse" in prompt:
        status, answer = 400, {"error": {"message": "No.", "type": "invalid_request_error", "code": "refused"}}
    else:
        text = f"You said: {prompt}"
        choice = {"message": {"content": text}} if "messages" in body else {"text": text}
        status, answer = 200, {"id": "c-1", "model": body.get("model"), "choices": [{"index": 0, **choice}]}
    response = {"status_code": status, "request_id": "r-1", "body": answer}
    return {"id": "batch_req_1", "custom_id": row["custom_id"], "response": response, "error": None}


def page(request: web.Request, objects: list[dict[str, Any]], most: int) -> web.Response:
    """At most `most` of them: clients have to turn pages."""
    after = request.query.get("after")
    start = 1 + [thing["id"] for thing in objects].index(after) if after else 0
    shown = objects[start : start + min(most, int(request.query.get("limit", most)))]
    last = shown[-1]["id"] if shown else None
    body = {"object": "list", "data": shown, "last_id": last, "has_more": start + len(shown) < len(objects)}
    return web.json_response(body)


def error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
    return web.json_response(body, status=status, headers=headers)
