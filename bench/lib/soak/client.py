"""HTTP as a soak needs it: one method per habit of a client, failures as one exception, streams that can be left."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

TIMEOUT_SECONDS = 120.0  # generous: what takes longer hangs


class AnswerError(Exception):
    """No answer, or not the one that was to come; the message says which."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:300]}")
        self.status = status  # 0: the connection failed


class SoakClient:
    """One tenant of the server at `url`. REQUIRES: an event loop, as aiohttp does; close() in the end."""

    def __init__(self, url: str, key: str) -> None:
        self.key = key
        self._url = url
        self._session = self._begin()

    def _begin(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            headers={"authorization": f"Bearer {self.key}"},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            connector=aiohttp.TCPConnector(limit=0),
        )

    async def hang_up(self) -> None:
        """Closes its connections; the next request opens another. REQUIRES: none is under way."""
        await self._session.close()
        self._session = self._begin()

    async def close(self) -> None:
        await self._session.close()

    async def bytes_of(self, method: str, path: str, **arguments: Any) -> bytes:
        """The body of a 200. Raises AnswerError."""
        try:
            async with self._session.request(method, self._url + path, **arguments) as response:
                body = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise AnswerError(0, f"{method} {path}: {type(error).__name__} {error}") from None
        if response.status != 200:
            raise AnswerError(response.status, f"{method} {path}: {body.decode(errors='replace')}")
        return body

    async def ask(self, method: str, path: str, **arguments: Any) -> Any:
        """The JSON of a 200. Raises AnswerError."""
        return json.loads(await self.bytes_of(method, path, **arguments))

    async def upload(self, content: bytes, purpose: str) -> str:
        """The file's id. Raises AnswerError."""
        form = aiohttp.FormData()
        form.add_field("purpose", purpose)
        form.add_field("file", content, filename="soak.jsonl")
        return str((await self.ask("POST", "/v1/files", data=form))["id"])

    async def stream(self, path: str, body: Mapping[str, Any], max_events: int | None = None) -> int:
        """Number of events read: up to [DONE], or until the client hangs up after max_events. Raises AnswerError."""
        num_events = 0
        try:
            async with self._session.post(self._url + path, json=dict(body) | {"stream": True}) as response:
                if response.status != 200:
                    raise AnswerError(response.status, (await response.read()).decode(errors="replace"))
                async for line in response.content:
                    if not line.startswith(b"data:"):
                        continue
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return num_events
                    if b'"error"' in data:
                        raise AnswerError(503, data.decode(errors="replace"))
                    num_events += 1
                    if max_events is not None and num_events >= max_events:
                        response.close()
                        return num_events
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise AnswerError(0, f"stream {path}: {type(error).__name__} {error}") from None
        raise AnswerError(0, f"stream {path}: ended without [DONE] after {num_events} events")

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Every event of a stream, "[DONE]" among them, until the server hangs up. Raises AnswerError."""
        try:
            async with self._session.post(self._url + path, json=dict(body) | {"stream": True}) as response:
                if response.status != 200:
                    raise AnswerError(response.status, (await response.read()).decode(errors="replace"))
                async for line in response.content:
                    if line.startswith(b"data:"):
                        data = line[5:].strip().decode()
                        yield data if data == "[DONE]" else json.loads(data)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise AnswerError(0, f"stream {path}: {type(error).__name__} {error}") from None
