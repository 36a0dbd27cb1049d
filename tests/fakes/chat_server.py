"""A chat server without a model, on a real socket, in a thread of its own.

It answers a chat with "You said: <last message>", a completion with "<prompt> and so on", word by word.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

MODELS = ("demo", "other")


@dataclass
class Received:
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    peer: tuple[str, int]


@dataclass
class FakeChatServer:
    api_key: str | None = None
    # Streams stop after this many words and wait until their client has gone
    hold_after: int | None = None
    # More user messages than this in one chat are refused
    max_turns: int = 1000
    received: list[Received] = field(default_factory=list)
    # What came to the advisories' and sessions' routes; other servers have none
    notices: list[Received] = field(default_factory=list)
    knows_sessions: bool = True
    refusals: deque[tuple[int, str, dict[str, str]]] = field(default_factory=deque)
    # Set when a stream's client went away before its end
    aborted: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def refuse(self, status: int, message: str = "refused", **headers: str) -> None:
        """The next request is answered with this instead."""
        self.refusals.append((status, message, {name.replace("_", "-"): value for name, value in headers.items()}))

    def __enter__(self) -> Self:
        started: threading.Event = threading.Event()
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
        app = web.Application(middlewares=[self._gate])
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_post("/v1/advisories", self._advise)
        app.router.add_route("*", "/v1/sessions/{id:.+}", self._session)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5)
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
        body = await request.json() if request.can_read_body else {}
        assert request.transport is not None
        peer = request.transport.get_extra_info("peername")
        what = Received(request.path, request.headers.copy(), body, peer)
        if request.path.startswith(("/v1/advisories", "/v1/sessions")):
            self.notices.append(what)
            if not self.knows_sessions:
                return error(404, "There is no such route.")
            return await handler(request)
        self.received.append(what)
        if self.refusals:
            return error(*self.refusals.popleft())
        if self.api_key and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return error(401, "Incorrect API key provided.")
        if body.get("model", MODELS[0]) not in MODELS:
            return error(404, f"The model '{body['model']}' does not exist.")
        response: web.StreamResponse = await handler(request)
        return response

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok"})

    async def _models(self, request: web.Request) -> web.StreamResponse:
        cards = [{"id": name, "object": "model", "created": 1, "max_model_len": 512} for name in MODELS]
        return web.json_response({"object": "list", "data": cards})

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = body["prompt"] if "prompt" in body else "".join(message["content"] for message in body["messages"])
        tokens = list(text.encode())
        return web.json_response({"tokens": tokens, "count": len(tokens), "max_model_len": 512})

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"prompt": bytes((await request.json())["tokens"]).decode()})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if sum(message["role"] == "user" for message in body["messages"]) > self.max_turns:
            return error(400, "Too many messages.")
        words = split(f"You said: {body['messages'][-1]['content']}")
        head = {"id": "chatcmpl-1", "created": 1, "model": body.get("model", MODELS[0])}
        used = usage(sum(len(split(message["content"])) for message in body["messages"]), len(words))
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "".join(words)}, "finish_reason": "stop"}
            return web.json_response({**head, "choices": [choice], "usage": used}, headers={"x-request-id": "r-1"})
        role = {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        deltas = [{**head, "choices": [{"index": 0, "delta": {"content": word}}]} for word in words]
        end = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        return await self._stream(request, [role, *deltas, end, {**head, "choices": [], "usage": used}])

    async def _advise(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        tiers = {"device": {"tokens": 7, "bytes": 700}, "host": {"tokens": 0, "bytes": 0}}
        status = {"id": body["session_id"], "num_tokens": 7, "tiers": tiers, "action": "pin", "outcome": "accepted"}
        return web.json_response({**status, "object": "session", "lease_ms": 30000.0, "lease_expires_at": 1.8e9})

    async def _session(self, request: web.Request) -> web.StreamResponse:
        if request.method == "DELETE":
            return web.json_response({"id": request.match_info["id"], "object": "session.deleted", "deleted": True})
        return web.json_response({"id": request.match_info["id"], "num_tokens": 7, "outcome": "accepted"})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompts = [body["prompt"]] if isinstance(body["prompt"], str) else body["prompt"]
        texts = [f"{prompt} and so on" for prompt in prompts]
        head = {"id": "cmpl-1", "created": 1, "model": body.get("model", MODELS[0])}
        used = usage(len(prompts), sum(len(split(text)) for text in texts))
        if not body.get("stream"):
            choices = [{"index": i, "text": text, "finish_reason": "length"} for i, text in enumerate(texts)]
            return web.json_response({**head, "choices": choices, "usage": used}, headers={"x-request-id": "r-1"})
        words = [{**head, "choices": [{"index": i, "text": w}]} for i, text in enumerate(texts) for w in split(text)]
        ends = [{**head, "choices": [{"index": i, "text": "", "finish_reason": "length"}]} for i in range(len(texts))]
        return await self._stream(request, [*words, *ends, {**head, "choices": [], "usage": used}])

    async def _stream(self, request: web.Request, chunks: list[dict[str, Any]]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-request-id": "r-1"})
        await response.prepare(request)
        try:
            for index, chunk in enumerate(chunks):
                if index == self.hold_after:
                    await asyncio.Event().wait()
                await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        except (asyncio.CancelledError, ConnectionError):
            self.aborted.set()
            raise
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return web.json_response(body, status=status, headers=headers)


def split(text: str) -> list[str]:
    """Words, each with the space before it."""
    first, *rest = text.split(" ")
    return [first, *(f" {word}" for word in rest)]


def usage(num_prompt_tokens: int, num_output_tokens: int) -> dict[str, int]:
    total = num_prompt_tokens + num_output_tokens
    return {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_output_tokens, "total_tokens": total}
