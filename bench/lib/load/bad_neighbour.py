"""What one tenant does at its worst: each kind of it as a coroutine that goes on until it is cancelled.

`Neighbour` runs one of them in a process of its own, so that its client does not share the measuring one's loop. The
process stands back behind the server (`stand_back.py`), so that what is measured is the server's work for it and not
the client's own. That may slow it down: it counts its answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.context import SpawnContext
from types import TracebackType
from typing import Any, Self

import aiohttp

from bench.lib.load.stand_back import run_behind

UPLOAD_BYTES = 16 << 20
SESSIONS_PER_SECOND = 100.0


class Attack:
    """One HTTP session of the tenant. Refusals are part of it, and so are connections that are dropped.

    has_begun: called when what it prepares (sessions, files) is there.
    """

    def __init__(self, http: aiohttp.ClientSession, vocab_size: int, has_begun: Callable[[], None]) -> None:
        self._http, self._vocab_size, self._has_begun = http, vocab_size, has_begun
        self._random = random.Random(1)
        self._numbers = itertools.count()

    def tokens(self, num: int) -> list[int]:
        return self._random.choices(range(10, self._vocab_size), k=num)

    async def post(self, path: str, body: dict[str, Any] | bytes) -> bytes:
        """An answer of any status; empty if there is none."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            async with self._http.post(path, data=content, headers=headers) as response:
                if response.status == 429:
                    await asyncio.sleep(0.05)
                return await response.read()
        return b""

    async def flex(self) -> None:
        fields = {"n": 8, "max_tokens": 500, "ignore_eos": True, "service_tier": "flex", "temperature": 1.0}
        await self._many(32, lambda: self.post("/v1/completions", {"prompt": self.tokens(64), **fields}))

    async def drafts(self) -> None:
        names = [f"draft-{i}" for i in range(32)]
        for name in names:
            await self.post("/v1/completions", {"prompt": self.tokens(8), "max_tokens": 1, "session_id": name})
        turns = itertools.cycle(names)

        async def advise() -> None:
            await self.post("/v1/advisories", {"session_id": next(turns), "prompt": self.tokens(1800)})
            await asyncio.sleep(0.05)

        await self._many(4, advise)

    async def sessions(self) -> None:
        async def ask() -> None:
            name = f"session-{next(self._numbers)}"
            await self.post("/v1/completions", {"prompt": [10], "max_tokens": 1, "session_id": name})
            await asyncio.sleep(4 / SESSIONS_PER_SECOND)

        await self._many(4, ask)

    async def tokenising(self) -> None:
        text = "".join(self._random.choices("abcdefghij \u4e16\u754c", k=1 << 20))
        body = json.dumps({"prompt": text}).encode()
        await self._many(4, lambda: self.post("/tokenize", body))

    async def uploads(self) -> None:
        await self._many(2, self._upload_and_delete)

    async def batches(self) -> None:
        body = {"max_tokens": 128, "ignore_eos": True}
        rows = [
            {
                "custom_id": str(i),
                "method": "POST",
                "url": "/v1/completions",
                "body": {**body, "prompt": self.tokens(128)},
            }
            for i in range(2000)
        ]
        file_id = await self._upload("\n".join(map(json.dumps, rows)).encode())
        fields = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = json.loads(await self.post("/v1/batches", fields))["id"]
        self._has_begun()
        try:
            await asyncio.Event().wait()
        finally:
            await self.post(f"/v1/batches/{batch}/cancel", {})

    async def storm(self) -> None:
        await self._many(64, lambda: self.post("/v1/advisories", {"session_id": "storm", "event": "typing"}))

    async def slow_reading(self) -> None:
        """Downloads that are not read."""
        file_id = await self._upload(b"x" * UPLOAD_BYTES)

        async def download() -> None:
            async with self._http.get(f"/v1/files/{file_id}/content"):
                await asyncio.sleep(60.0)

        await self._many(64, download)

    async def _upload(self, content: bytes) -> str:
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", content, filename="rows.jsonl")
        async with self._http.post("/v1/files", data=form) as response:
            answer: dict[str, Any] = await response.json()
        return str(answer["id"])

    async def _upload_and_delete(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, ConnectionError, KeyError):
            file_id = await self._upload(b"x" * UPLOAD_BYTES)
            async with self._http.delete(f"/v1/files/{file_id}") as response:
                await response.read()

    async def _many(self, num: int, once: Callable[[], Awaitable[object]]) -> None:
        self._has_begun()

        async def go_on() -> None:
            while True:
                await once()

        await asyncio.gather(*(go_on() for _ in range(num)))


ATTACKS: dict[str, Callable[[Attack], Awaitable[None]]] = {
    "flex": Attack.flex,
    "drafts": Attack.drafts,
    "sessions": Attack.sessions,
    "tokenising": Attack.tokenising,
    "uploads": Attack.uploads,
    "batches": Attack.batches,
    "storm": Attack.storm,
    "slow reading": Attack.slow_reading,
}


class _Shared:
    """Between the two processes."""

    def __init__(self, context: SpawnContext) -> None:
        self.has_begun, self.is_over = context.Event(), context.Event()
        self.num_served, self.num_refused = context.Value("Q"), context.Value("Q")

    def count(self, status: int) -> None:
        number = self.num_served if status < 400 else self.num_refused
        with number.get_lock():
            number.value += 1


async def _attack(name: str, url: str, key: str, vocab_size: int, shared: _Shared) -> None:
    async def on_answer(_: aiohttp.ClientSession, __: object, params: aiohttp.TraceRequestEndParams) -> None:
        shared.count(params.response.status)

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(on_answer)
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(
        url, headers=headers, timeout=timeout, connector=connector, trace_configs=[trace]
    ) as http:
        task = asyncio.ensure_future(ATTACKS[name](Attack(http, vocab_size, shared.has_begun.set)))
        is_over = asyncio.create_task(asyncio.to_thread(shared.is_over.wait))
        await asyncio.wait({task, is_over}, return_when="FIRST_COMPLETED")
        if task.done():
            task.result()  # an attack does not end by itself
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _run(name: str, url: str, key: str, vocab_size: int, shared: _Shared) -> None:
    run_behind(_attack(name, url, key, vocab_size, shared))


@dataclass(frozen=True, slots=True)
class Answers:
    num_served: int = 0
    num_refused: int = 0
    seconds: float = 0.0

    def __add__(self, other: Answers) -> Answers:
        return Answers(
            self.num_served + other.num_served, self.num_refused + other.num_refused, self.seconds + other.seconds
        )

    def __sub__(self, other: Answers) -> Answers:
        return Answers(
            self.num_served - other.num_served, self.num_refused - other.num_refused, self.seconds - other.seconds
        )


class Neighbour:
    """A context manager: the attack goes on inside it."""

    def __init__(self, name: str, url: str, key: str, vocab_size: int) -> None:
        context: SpawnContext = multiprocessing.get_context("spawn")
        self._shared = _Shared(context)
        self._process = context.Process(target=_run, args=(name, url, key, vocab_size, self._shared), daemon=True)

    def answers(self) -> Answers:
        """So far."""
        return Answers(self._shared.num_served.value, self._shared.num_refused.value, time.perf_counter())

    def __enter__(self) -> Self:
        """Returns when what the attack needs is there."""
        self._process.start()
        while not self._shared.has_begun.wait(0.1) and self._process.is_alive():
            pass
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        """Raises RuntimeError if the attack had failed."""
        has_failed = self._process.exitcode is not None
        self._shared.is_over.set()
        self._process.join(20.0)
        self._process.kill()
        if has_failed and e is None:
            raise RuntimeError("the neighbour ended by itself: see its traceback")
