"""An HTTP peer without a socket: answers in order, and remembers what it was asked."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import httpx


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that arrives in these pieces; an exception among them is raised in its place."""

    def __init__(self, *pieces: bytes | BaseException) -> None:
        self.pieces = deque(pieces)
        self.is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        while self.pieces:
            piece = self.pieces.popleft()
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    def close(self) -> None:
        self.is_closed = True

    async def aclose(self) -> None:
        self.is_closed = True


class Script(httpx.MockTransport):
    """Each request takes the next answer; an exception is raised instead of answering."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        super().__init__(self._answer)
        self.answers = deque(answers)
        self.requests: list[httpx.Request] = []

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]


def chat_answer(text: str, **headers: str) -> httpx.Response:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return httpx.Response(200, json={"id": "chatcmpl-1", "choices": [choice]}, headers=headers)


def refusal(status: int, message: str = "no", **headers: str) -> httpx.Response:
    error = {"message": message, "type": "invalid_request_error", "param": "n", "code": "bad"}
    return httpx.Response(status, json={"error": error}, headers={k.replace("_", "-"): v for k, v in headers.items()})


def event(payload: Any) -> bytes:
    return b"data: " + (payload if isinstance(payload, str) else json.dumps(payload)).encode() + b"\n\n"


def chat_events(texts: Iterable[str]) -> list[bytes]:
    """A whole chat stream: role, one event per text, the end, the usage, [DONE]."""
    texts = list(texts)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": text} for text in texts)]
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    used = {"prompt_tokens": 3, "completion_tokens": len(texts), "total_tokens": 3 + len(texts)}
    chunks.append({"choices": [], "usage": used})
    head = {"id": "chatcmpl-1", "created": 1, "model": "demo"}
    return [*(event({**head, **chunk}) for chunk in chunks), event("[DONE]")]


def streamed(*pieces: bytes | BaseException) -> httpx.Response:
    return httpx.Response(200, stream=Pieces(*pieces), headers={"x-request-id": "r-7"})
