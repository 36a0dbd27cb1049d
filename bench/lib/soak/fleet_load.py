"""Load on a fleet whose every answer is known beforehand: streams, conversations that are announced, batches.

In float32 an answer does not depend on who runs beside it, or on where: each is compared with what an undisturbed fleet
said to the same request.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.lib.soak.client import AnswerError, SoakClient
from bench.lib.soak.ledger import Ledger

NUM_SESSIONS, NUM_TURNS = 24, 4
NUM_STORIES = 48
END_SECONDS = 300.0  # for a batch to end: generous
POLL_SECONDS = 0.5
PATH = "/v1/completions"
_TURN = "and then the ship went on to another island where nobody had ever been, or so they said; "


@dataclass(frozen=True, slots=True)
class Answer:
    text: str = ""
    ends: tuple[str, ...] = ()  # finish reasons and errors, and whether [DONE] came: one of each is right
    longest_gap_s: float = 0.0  # between two pieces

    def problem(self, expected: Answer) -> str:
        """Empty: it is as it should be."""
        if self.ends != expected.ends:
            return f"it ended with {self.ends}, not with {expected.ends}"
        if self.text != expected.text:
            at = next((i for i, (a, b) in enumerate(zip(self.text, expected.text, strict=False)) if a != b), -1)
            lengths = f"{len(self.text)} of {len(expected.text)} characters"
            return f"its text is another from character {at} on, {lengths}: {self.text[at - 20 : at + 20]!r}"
        return ""


def stories(model: str) -> dict[str, dict[str, Any]]:
    """Requests by name: greedy, seeded, with penalties, of 40 to 320 tokens."""
    found: dict[str, dict[str, Any]] = {}
    for i in range(NUM_STORIES):
        fields: dict[str, Any] = {"temperature": i % 2, "seed": i, "max_tokens": 40 + 40 * (i % 8)}
        if i % 5 == 0:
            fields["frequency_penalty"] = 0.5
        found[f"story {i}"] = {"model": model, "prompt": f"Story {i}: once", "ignore_eos": True, **fields}
    return found


def turns(model: str) -> dict[str, dict[str, Any]]:
    """Of conversations whose prompts are written beforehand: each turn's begins with the one before."""
    found = {}
    for session in range(NUM_SESSIONS):
        for turn in range(NUM_TURNS):
            prompt = f"Session {session}: " + _TURN * (2 * turn + 2)
            fields = {"temperature": 0, "max_tokens": 60, "ignore_eos": True, "session_id": f"session-{session}"}
            found[turn_name(session, turn)] = {"model": model, "prompt": prompt, **fields}
    return found


def turn_name(session: int, turn: int) -> str:
    return f"session {session} turn {turn}"


async def read(client: SoakClient, body: dict[str, Any]) -> Answer:
    """To the end, whatever that is. Raises AnswerError where none comes."""
    text, ends, gap, last = [], [], 0.0, 0.0
    async for event in client.events(PATH, body):
        now = time.monotonic()
        gap, last = max(gap, now - last if last else 0.0), now
        if event == "[DONE]":
            ends.append(event)
            continue
        if "error" in event:
            ends.append(f"error: {event['error']}")
            continue
        for choice in event["choices"]:
            text.append(choice["text"])
            if choice["finish_reason"]:
                ends.append(choice["finish_reason"])
    return Answer("".join(text), tuple(ends), gap)


async def undisturbed(client: SoakClient, requests: dict[str, dict[str, Any]]) -> dict[str, Answer]:
    """What is said to each, eight at a time."""
    gate = asyncio.Semaphore(8)

    async def one(body: dict[str, Any]) -> Answer:
        async with gate:
            return await read(client, body)

    found = await asyncio.gather(*map(one, requests.values()))
    return dict(zip(requests, found, strict=True))


@dataclass
class FleetLoad:
    client: SoakClient
    model: str
    ledger: Ledger
    stop: asyncio.Event
    rng: random.Random
    gaps_s: list[float] = field(default_factory=list)  # the longest of each stream

    async def prepare(self) -> None:
        """Asks everything once. Raises AnswerError."""
        self._requests = stories(self.model) | turns(self.model)
        self._expected = await undisturbed(self.client, self._requests)
        for name, answer in self._expected.items():
            if answer.ends != ("length", "[DONE]"):
                self.ledger.fail(f"{name}, undisturbed, ended with {answer.ends}")

    def all(self, num_streams: int, num_batches: int) -> Iterator[Any]:
        for i in range(num_streams):
            yield self._talk(i) if i % 2 else self._tell_stories()
        for _ in range(num_batches):
            yield self._run_batches()

    async def _ask(self, what: str, name: str) -> None:
        try:
            answer = await read(self.client, self._requests[name])
        except AnswerError as error:
            self.ledger.count(f"{what} failed")
            self.ledger.fail(f"{name}: {error}")
            await asyncio.sleep(1.0)
            return
        if problem := answer.problem(self._expected[name]):
            self.ledger.count(f"{what} wrong")
            self.ledger.fail(f"{name}: {problem}")
            return
        self.ledger.count(f"{what} ok")
        self.gaps_s.append(answer.longest_gap_s)

    async def _tell_stories(self) -> None:
        while not self.stop.is_set():
            await self._ask("story", f"story {self.rng.randrange(NUM_STORIES)}")
            await asyncio.sleep(self.rng.expovariate(4.0))

    async def _talk(self, number: int) -> None:
        while not self.stop.is_set():
            session = number // 2 % NUM_SESSIONS
            for turn in range(NUM_TURNS):
                if self.stop.is_set():
                    return
                await self._ask("turn", turn_name(session, turn))
                if self.rng.random() < 0.7:
                    await self._announce(session)
                await asyncio.sleep(self.rng.expovariate(2.0))

    async def _announce(self, session: int) -> None:
        event = self.rng.choice(("typing", "typing", "agent_step", "cancel"))
        body = {"session_id": f"session-{session}", "eta_ms": 500, "lease_ms": 5000, "event": event}
        try:
            await self.client.ask("POST", "/v1/advisories", json=body)
            self.ledger.count("advisory ok")
        except AnswerError as error:
            self.ledger.count(f"advisory {error.status}")
            self.ledger.fail(f"advisory: {error}")

    # ---- batches ----

    async def _run_batches(self) -> None:
        while not self.stop.is_set():
            names = [f"story {self.rng.randrange(NUM_STORIES)}" for _ in range(self.rng.randint(20, 120))]
            try:
                await self._run_batch(names)
            except AnswerError as error:
                self.ledger.fail(f"batch: {error}")
                await asyncio.sleep(1.0)

    async def _run_batch(self, names: Sequence[str]) -> None:
        lines = [
            {"custom_id": f"row-{i}", "method": "POST", "url": PATH, "body": self._requests[name]}
            for i, name in enumerate(names)
        ]
        file = await self.client.upload("\n".join(map(json.dumps, lines)).encode(), "batch")
        asked = {"input_file_id": file, "endpoint": PATH, "completion_window": "24h"}
        batch = await self.client.ask("POST", "/v1/batches", json=asked)
        deadline = time.monotonic() + END_SECONDS
        while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
            if time.monotonic() > deadline:
                self.ledger.fail(f"batch {batch['id']} is {batch['status']} after {END_SECONDS:g} s")
                return
            await asyncio.sleep(POLL_SECONDS)
            batch = await self.client.ask("GET", f"/v1/batches/{batch['id']}")
        found: list[Any] = []
        files = [batch[name] for name in ("output_file_id", "error_file_id") if batch.get(name)]
        for name in files:
            content = await self.client.bytes_of("GET", f"/v1/files/{name}/content")
            found += map(json.loads, content.splitlines())
        for problem in self._problems(names, batch, found):
            self.ledger.fail(f"batch {batch['id']}: {problem}")
        self.ledger.count(f"batch {batch['status']}")
        self.ledger.counts["batch rows"] += len(found)
        for name in (file, *files):
            await self.client.ask("DELETE", f"/v1/files/{name}")

    def _problems(self, names: Sequence[str], batch: dict[str, Any], found: Sequence[Any]) -> Iterator[str]:
        if batch["status"] != "completed":
            yield f"it is {batch['status']}: {batch.get('errors')}"
        ids = sorted(line["custom_id"] for line in found)
        if ids != sorted(f"row-{i}" for i in range(len(names))):
            yield f"{len(ids)} results, {len(set(ids))} of them different, for {len(names)} rows"
        for line in found:
            response = line.get("response") or {}
            if response.get("status_code") != 200:
                yield f"{line['custom_id']}: {line.get('error') or response}"
                continue
            name = names[int(line["custom_id"].removeprefix("row-"))]
            choice = response["body"]["choices"][0]
            answer = Answer(choice["text"], (choice["finish_reason"], "[DONE]"))
            if problem := answer.problem(self._expected[name]):
                yield f"{line['custom_id']} ({name}): {problem}"
