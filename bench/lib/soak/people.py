"""People, agents and clumsy clients of a soak: each is a coroutine that goes on until it is told to stop."""

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import Awaitable, Callable

from bench.lib.soak.client import AnswerError, SoakClient
from bench.lib.soak.ledger import Ledger

NUM_SESSIONS = 48  # per tenant
TOO_MANY = 429
LEASE_MS = 2000
_WORDS = ("seven", "and", "five", "a", "story", "of", "the", "sea", "12", "+", "8", "?", "naïve", "東京", "again")


class People:
    """Of one tenant. Everything that is drawn comes from `rng`."""

    def __init__(self, client: SoakClient, model: str, ledger: Ledger, stop: asyncio.Event, rng: random.Random) -> None:
        self._client = client
        self._model = model
        self._ledger = ledger
        self._stop = stop
        self._rng = rng

    def all(self) -> list[Awaitable[None]]:
        chats = [self._again("chat", self._chat, 0.3) for _ in range(3)]
        aborts = [self._again("abort", self._abort, 0.3) for _ in range(2)]
        return [
            *chats,
            *aborts,
            self._again("flex", self._flex, 1.0),
            self._again("advisory", self._advise, 0.1),
            self._again("session", self._forget, 2.0),
            self._again("upload", self._upload, 1.0),
        ]

    async def _again(self, what: str, act: Callable[[], Awaitable[object]], mean_pause: float) -> None:
        while not self._stop.is_set():
            mark = self._ledger.trouble.mark()
            try:
                await act()
                self._ledger.count(f"{what} ok")
            except AnswerError as error:
                if error.status == TOO_MANY:
                    self._ledger.count(f"{what} 429")
                else:
                    self._ledger.broken(what, str(error), mark)
                    await asyncio.sleep(1.0)
            await asyncio.sleep(self._rng.expovariate(1 / mean_pause))

    def _text(self, num_words: int) -> str:
        return " ".join(self._rng.choice(_WORDS) for _ in range(num_words))

    def _conversation(self, session: int) -> list[dict[str, str]]:
        """Turns of one session begin alike, so that its cache is worth keeping."""
        opening = f"Session {session}: " + " ".join(_WORDS[session % 7 :] * 8)
        return [
            {"role": "user", "content": opening},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": self._text(self._rng.randint(1, 30))},
        ]

    def _body(self, max_tokens: int) -> dict[str, object]:
        session = self._rng.randrange(NUM_SESSIONS)
        return {
            "model": self._model,
            "messages": self._conversation(session),
            "session_id": f"session-{session}",
            "max_tokens": max_tokens,
            "ignore_eos": True,
        }

    async def _chat(self) -> None:
        body = self._body(self._rng.randint(1, 48))
        body["n"] = self._rng.choice((1, 1, 1, 3))
        if self._rng.random() < 0.7:
            await self._client.stream("/v1/chat/completions", body)
            return
        answer = await self._client.ask("POST", "/v1/chat/completions", json=body)
        if len(answer["choices"]) != body["n"]:
            self._ledger.fail(f"chat: {len(answer['choices'])} choices of {body['n']}")

    async def _abort(self) -> None:
        await self._client.stream("/v1/chat/completions", self._body(400), max_events=self._rng.randint(1, 12))

    async def _flex(self) -> None:
        await self._client.ask("POST", "/v1/chat/completions", json=self._body(24) | {"service_tier": "flex"})

    async def _advise(self) -> None:
        session = self._rng.randrange(NUM_SESSIONS * 2)  # half of them are unknown
        body: dict[str, object] = {"session_id": f"session-{session}", "eta_ms": 200, "lease_ms": LEASE_MS}
        match self._rng.randrange(4):
            case 0:
                body["event"] = "cancel"
            case 1:
                conversation = self._conversation(session)
                body |= {"event": "typing", "messages": conversation[:2], "draft": conversation[2]["content"]}
            case _:
                body["event"] = self._rng.choice(("typing", "agent_step"))
        await self._client.ask("POST", "/v1/advisories", json=body)

    async def _forget(self) -> None:
        await forget(self._client, self._rng.randrange(NUM_SESSIONS))

    async def _upload(self) -> None:
        content = "".join(self._rng.choices(string.ascii_letters, k=self._rng.randint(1, 200_000))).encode()
        file = await self._client.upload(content, "user_data")
        if await self._client.bytes_of("GET", f"/v1/files/{file}/content") != content:
            self._ledger.fail(f"upload: {file} came back different")
        await self._client.ask("DELETE", f"/v1/files/{file}")


async def forget(client: SoakClient, session: int) -> None:
    """Raises AnswerError, but not for a session that is unknown."""
    try:
        await client.ask("DELETE", f"/v1/sessions/session-{session}")
    except AnswerError as error:
        if error.status != 404:
            raise
