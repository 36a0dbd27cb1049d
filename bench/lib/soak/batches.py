"""Batches of a soak: completed, cancelled and expired ones, and what must be true of each when it has ended."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bench.lib.soak.client import AnswerError, SoakClient
from bench.lib.soak.ledger import Ledger

ENDED = ("completed", "failed", "expired", "cancelled")
POLL_SECONDS = 0.5
END_SECONDS = 600.0  # generous: a batch that takes longer never ends
EXPIRING_WINDOW = "3s"
_ENDPOINT = "/v1/completions"


@dataclass
class Batch:
    """As it was asked for; `fate` is how it is to end."""

    id: str
    file: str
    num_rows: int
    fate: str


@dataclass
class Batches:
    """Of one tenant: begins them, follows them to their end, looks at every row, deletes their files."""

    client: SoakClient
    model: str
    ledger: Ledger
    stop: asyncio.Event
    rng: random.Random
    num_known: int = field(default=0)

    async def run(self) -> None:
        while not self.stop.is_set():
            fate = self.rng.choices(("completed", "cancelled", "expired"), (6, 3, 1))[0]
            batch = await self._begin(fate)
            if batch is None:
                await asyncio.sleep(1.0)
                continue
            self.num_known += 1
            await self._follow(batch)

    async def _begin(self, fate: str) -> Batch | None:
        """None: not now; a batch of which no answer came is found again by `unfinished`."""
        num_rows, max_tokens = (600, 100) if fate == "expired" else (self.rng.randint(10, 120), 12)
        mark = self.ledger.trouble.mark()
        try:
            file = await self.client.upload(rows(self.model, num_rows, max_tokens, self.rng), "batch")
            window = EXPIRING_WINDOW if fate == "expired" else "24h"
            asked = {"input_file_id": file, "endpoint": _ENDPOINT, "completion_window": window}
            answer = await self.client.ask("POST", "/v1/batches", json=asked)
            return Batch(answer["id"], file, num_rows, fate)
        except AnswerError as error:
            if error.status == 429:
                self.ledger.count("batch 429")
            else:
                self.ledger.broken("batch", str(error), mark)
            return None

    async def _follow(self, batch: Batch) -> None:
        if batch.fate == "cancelled":
            await asyncio.sleep(self.rng.uniform(0, 2))
            await self._patiently("POST", f"/v1/batches/{batch.id}/cancel", accept=409)
        answer = await self._end(batch)
        if answer is None:
            return
        lines = await self._lines(answer)
        for problem in problems(batch, answer, lines):
            self.ledger.fail(f"batch {batch.id}, to be {batch.fate}: {problem}")
        self.ledger.count(f"batch {answer['status']}")
        self.ledger.counts["batch rows"] += len(lines)
        for file in (batch.file, answer.get("output_file_id"), answer.get("error_file_id")):
            if file:
                await self._patiently("DELETE", f"/v1/files/{file}", accept=404)

    async def _end(self, batch: Batch) -> Any:
        """The batch as it ended; None, and a failure, if it does not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + END_SECONDS
        while (answer := await self._patiently("GET", f"/v1/batches/{batch.id}")) is None or (
            answer["status"] not in ENDED
        ):
            if loop.time() > deadline:
                self.ledger.fail(f"batch {batch.id} is {answer and answer['status']} after {END_SECONDS:g} s")
                return None
            await asyncio.sleep(POLL_SECONDS)
        return answer

    async def _lines(self, answer: Any) -> list[Any]:
        lines: list[Any] = []
        for name in ("output_file_id", "error_file_id"):
            if answer.get(name):
                content = await self._patiently("GET", f"/v1/files/{answer[name]}/content", as_bytes=True)
                lines += [json.loads(line) for line in (content or b"").splitlines()]
        return lines

    async def _patiently(self, method: str, path: str, accept: int | None = None, as_bytes: bool = False) -> Any:
        """Again while the server is in trouble that we made; None where the answer is `accept`, or a failure."""
        ask = self.client.bytes_of if as_bytes else self.client.ask
        for _ in range(200):
            mark = self.ledger.trouble.mark()
            try:
                return await ask(method, path)
            except AnswerError as error:
                if error.status == accept:
                    return None
                if error.status != 429 and not self.ledger.trouble.since(mark):
                    self.ledger.fail(str(error))
                    return None
                await asyncio.sleep(0.5)
        self.ledger.fail(f"{method} {path}: no answer for 100 s")
        return None


def rows(model: str, num_rows: int, max_tokens: int, rng: random.Random) -> bytes:
    """A batch's input file, as bytes."""
    lines = []
    for i in range(num_rows):
        prompt = f"Story {rng.randrange(20)}, part {i}: once"
        body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        lines.append(json.dumps({"custom_id": f"row-{i}", "method": "POST", "url": _ENDPOINT, "body": body}))
    return "\n".join(lines).encode()


def problems(batch: Batch, answer: Any, lines: Iterable[Any]) -> list[str]:
    """What is wrong with a batch that has ended; `lines` are those of its output and its error file together."""
    found = []
    lines = list(lines)
    allowed = {
        "completed": ("completed",),
        "cancelled": ("cancelled", "completed"),
        "expired": ("expired", "completed"),
    }
    if answer["status"] not in allowed[batch.fate]:
        found.append(f"it is {answer['status']}: {answer.get('errors')}")
    seen = Counter(str(line["custom_id"]) for line in lines)
    expected = {f"row-{i}" for i in range(batch.num_rows)}
    if missing := expected - set(seen):
        found.append(f"{len(missing)} rows have no result, {min(missing)} among them")
    if foreign := set(seen) - expected:
        found.append(f"{len(foreign)} results are of no row, {min(foreign)} among them")
    if twice := [name for name, count in seen.items() if count > 1]:
        found.append(f"{len(twice)} rows have several results, {min(twice)} among them")
    given_up = sum(line.get("error") is not None for line in lines)
    if answer["status"] == "completed" and given_up:
        found.append(
            f"{given_up} rows of a completed batch have errors: {next(x['error'] for x in lines if x.get('error'))}"
        )
    return found


async def unfinished(client: SoakClient) -> list[str]:
    """Batches of the tenant, known to the soak or not, that have not ended, as 'id status'. Raises AnswerError."""
    found, after = [], ""
    while True:
        page = await client.ask("GET", f"/v1/batches?limit=100{after}")
        found += [f"{one['id']} {one['status']}" for one in page["data"] if one["status"] not in ENDED]
        if not page["has_more"]:
            return found
        after = f"&after={page['last_id']}"
