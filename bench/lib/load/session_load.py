"""Users who hold conversations with a server, think between turns and, if asked to, say so when they begin to type.

Lengths are ShareGPT's rounds, pauses Mooncake's gaps between turns (bench/studies/data/README.md), both scaled. A fixed
number of users is always there: whoever ends a conversation begins the next one.
"""

from __future__ import annotations

import asyncio
import csv
import gzip
import itertools
import random
import statistics
import time
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import orjson

from bench.lib.load.http_stream import HttpStream

DATA = Path(__file__).resolve().parents[2] / "studies" / "data"
LEAD_SECONDS = 11.3  # from the first key press to the message, on average: Symphony, section 1


@dataclass(frozen=True, slots=True)
class Round:
    """A turn: tokens that the user adds to the conversation, and tokens of the answer."""

    num_new: int
    num_output: int


@dataclass(frozen=True, slots=True)
class Scales:
    """What makes a datacentre's load a laptop's."""

    length: float = 0.25
    time: float = 0.05
    max_tokens: int = 1500  # of a conversation, after scaling; it ends before

    @property
    def lead_seconds(self) -> float:
        return LEAD_SECONDS * self.time


@dataclass(frozen=True, slots=True)
class Habits:
    """What users tell the server before they ask."""

    advises: bool = False
    sends_drafts: bool = False
    missed_ratio: float = 0.0  # of advisories that are never sent


@dataclass(frozen=True, slots=True)
class Turn:
    is_follow_up: bool
    asked_at: float  # seconds on the client's clock
    ttft: float
    e2e: float
    num_prompt: int
    num_cached: int
    num_output: int


@cache
def column(name: str, field: str) -> list[float]:
    with gzip.open(DATA / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
        return [float(row[field]) for row in csv.DictReader(file)]


@cache
def conversations(scales: Scales) -> list[list[Round]]:
    """In the order of the data; those of several turns only, since the first turn has nothing to gain."""
    with gzip.open(DATA / "sharegpt_turns.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = []
    for _, session in groupby(rows, key=lambda row: row["session_id"]):
        rounds, so_far, length = [], 0, 0
        for row in session:
            num_new = max(1, round((int(row["input_tokens"]) - so_far) * scales.length))
            num_output = max(2, round(int(row["output_tokens"]) * scales.length))
            so_far = int(row["input_tokens"]) + int(row["output_tokens"])
            length += num_new + num_output
            if length > scales.max_tokens:
                break
            rounds.append(Round(num_new, num_output))
        if len(rounds) > 1:
            found.append(rounds)
    return found


def mean_context(all_rounds: list[list[Round]]) -> float:
    """Tokens of a conversation between two of its turns."""
    lengths = []
    for rounds in all_rounds:
        length = 0
        for turn in rounds[:-1]:
            length += turn.num_new + turn.num_output
            lengths.append(length)
    return statistics.fmean(lengths)


class User:
    """One after the other: conversations, drawn by a seed of the user's own, so that every variant sees the same."""

    def __init__(self, url: str, number: int, vocab_size: int, scales: Scales, habits: Habits) -> None:
        self._url = url
        self._scales = scales
        self._habits = habits
        self._vocab_size = vocab_size
        self._number = number
        self._random = random.Random(f"user {number}")
        self._misses = random.Random(f"misses {number}")
        self._pauses = [pause * scales.time for pause in column("turn_gaps", "gap_s")]
        self._deck = conversations(scales)
        self._streams: dict[str, HttpStream] = {}
        self.turns: list[Turn] = []

    async def run(self, until: float) -> None:
        """Ends when a conversation's next turn would begin after `until`, on the client's clock."""
        await asyncio.sleep(self._random.uniform(0, statistics.fmean(self._pauses)))
        for number in itertools.count():
            rounds = self._random.choice(self._deck)
            if not await self._talk(f"user-{self._number}-{number}", rounds, until):
                break
        for stream in self._streams.values():
            stream.close()

    async def _talk(self, session_id: str, rounds: list[Round], until: float) -> bool:
        history: list[int] = []
        for i, turn in enumerate(rounds):
            new = self._random.choices(range(3, self._vocab_size), k=turn.num_new)
            pause = self._random.choice(self._pauses)
            if time.perf_counter() + pause > until:
                return False
            await self._think(session_id, history, new, pause, is_follow_up=i > 0)
            history = await self._ask(session_id, history + new, turn.num_output, is_follow_up=i > 0)
        await (await self._connection("side")).request("DELETE", f"/v1/sessions/{session_id}", b"")
        return True

    async def _connection(self, name: str) -> HttpStream:
        """Servers close connections that are idle for long."""
        if name not in self._streams or self._streams[name].is_closed:
            self._streams[name] = await HttpStream.connect(self._url)
        return self._streams[name]

    async def _think(
        self, session_id: str, history: list[int], new: list[int], pause: float, *, is_follow_up: bool
    ) -> None:
        is_missed = self._misses.random() < self._habits.missed_ratio
        if not is_follow_up or not self._habits.advises or is_missed:
            await asyncio.sleep(pause)
            return
        lead = min(pause, self._scales.lead_seconds)
        await asyncio.sleep(pause - lead)
        typed_at = time.perf_counter()
        await self._advise({"session_id": session_id})
        if self._habits.sends_drafts:
            await asyncio.sleep(max(0.0, typed_at + 0.6 * lead - time.perf_counter()))
            await self._advise({"session_id": session_id, "prompt": history + new[: len(new) // 2]})
        await asyncio.sleep(max(0.0, typed_at + lead - time.perf_counter()))

    async def _advise(self, body: dict[str, object]) -> None:
        response = await (await self._connection("side")).request("POST", "/v1/advisories", orjson.dumps(body))
        assert response.status == 200, response.body()

    async def _ask(self, session_id: str, prompt: list[int], num_output: int, *, is_follow_up: bool) -> list[int]:
        body = orjson.dumps(
            {
                "prompt": prompt,
                "session_id": session_id,
                "max_tokens": num_output,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        stream = await self._connection("main")
        started = time.perf_counter()
        response = await stream.request("POST", "/v1/completions", body)
        assert response.status == 200, response.body()
        lines = [(at, line[6:]) for at, line in response.events() if line.startswith(b"data: {")]
        events = [(at, orjson.loads(line)) for at, line in lines]
        pieces = [(at, choice.get("token_ids")) for at, event in events for choice in event["choices"]]
        output = [token for _, ids in pieces for token in ids or ()]
        usage = events[-1][1]["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        ttft = next(at for at, ids in pieces if ids) - started
        e2e = events[-1][0] - started
        self.turns.append(Turn(is_follow_up, started, ttft, e2e, len(prompt), cached, len(output)))
        return prompt + output


async def run_users(
    url: str, num_users: int, vocab_size: int, scales: Scales, habits: Habits, warm_up: float, seconds: float
) -> list[Turn]:
    """Turns that were asked after the warm-up and before the end."""
    begin = time.perf_counter() + warm_up
    users = [User(url, number, vocab_size, scales, habits) for number in range(num_users)]
    await asyncio.gather(*(user.run(begin + seconds) for user in users))
    return [turn for user in users for turn in user.turns if begin <= turn.asked_at < begin + seconds]
