"""A server of streaming completions that does as it is told, for the load generator's tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass
class CompletionsServer:
    """How to answer, and what was asked."""

    tokens_per_chunk: int = 1
    has_closing_chunk: bool = False  # a last chunk with a finish reason and no token
    num_missing_tokens: int = 0
    is_cut_off: bool = False  # ends the stream without [DONE]
    error_event: str = ""
    status: int = 200
    wait_for: int = 1  # answers nobody until this many requests are in flight together
    requests: list[dict[str, Any]] = field(default_factory=list)
    num_in_flight: int = 0
    max_in_flight: int = 0

    def __post_init__(self) -> None:
        self._crowd = asyncio.Event()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.num_in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.num_in_flight)
        if self.num_in_flight >= self.wait_for:
            self._crowd.set()
        await self._crowd.wait()
        try:
            if self.status != 200:
                return web.json_response({"error": {"message": "told to refuse"}}, status=self.status)
            return await self._stream(request, body)
        finally:
            self.num_in_flight -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        num_tokens = body["max_tokens"] - self.num_missing_tokens
        for first in range(0, num_tokens, self.tokens_per_chunk):
            num_new = min(self.tokens_per_chunk, num_tokens - first)
            await send(response, {"choices": [{"text": "t" * num_new, "finish_reason": None}]})
        if self.has_closing_chunk:
            await send(response, {"choices": [{"text": "", "finish_reason": "length"}]})
        if self.error_event:
            await send(response, {"error": {"message": self.error_event}})
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": num_tokens}
        await send(response, {"choices": [], "usage": usage})
        if not self.is_cut_off:
            await response.write(b"data: [DONE]\n\n")
        return response

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake-model"}]})


async def send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


@asynccontextmanager
async def running(server: CompletionsServer) -> AsyncIterator[str]:
    """The base URL under which the server answers."""
    app = web.Application()
    app.router.add_post("/v1/completions", server.complete)
    app.router.add_get("/v1/models", server.models)
    async with TestServer(app) as test_server:
        yield str(test_server.make_url(""))
