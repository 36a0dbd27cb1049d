"""Users of bench/run/advisories.py: what they say, in which order, and what is measured of it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.lib.load.session_load import Habits, Round, Scales, User, conversations, mean_context
from fakes.eventually import eventually

SCALES = Scales(length=0.02, time=0.0001, max_tokens=120)


def test_conversations_are_scaled_cut_and_of_several_turns() -> None:
    found = conversations(Scales())
    assert min(map(len, found)) > 1
    assert max(sum(turn.num_new + turn.num_output for turn in rounds) for rounds in found) <= Scales().max_tokens
    assert len(conversations(Scales(max_tokens=500))) < len(found)


def test_mean_context_is_what_waits_between_turns() -> None:
    assert mean_context([[Round(10, 20), Round(5, 5), Round(1, 1)], [Round(2, 4), Round(9, 9)]]) == (30 + 40 + 6) / 3


class Server:
    """Answers with tokens 7, and remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_route("*", "/v1/{name:.+}", self._other)
        self.server = TestServer(app)

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(("ask", body["session_id"], body["prompt"]))
        ids = [7] * body["max_tokens"]
        used = {"prompt_tokens_details": {"cached_tokens": len(body["prompt"]) // 2}}
        events = [f'data: {{"choices": [{{"token_ids": {ids}}}]}}', f'data: {{"choices": [], "usage": {used}}}']
        return web.Response(text=("\n\n".join([": wait", *events, "data: [DONE]"]) + "\n\n").replace("'", '"'))

    async def _other(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            body = await request.json()
            self.asked.append(("draft" if "prompt" in body else "typing", body["session_id"], body.get("prompt")))
        return web.json_response({})


async def run(habits: Habits) -> list[tuple[str, str, Any]]:
    """The first 40 things that two users said."""
    server = Server()
    await server.server.start_server()
    users = [User(str(server.server.make_url("")), number, 100, SCALES, habits) for number in range(2)]
    talking = asyncio.gather(*(user.run(float("inf")) for user in users))
    await eventually(lambda: len(server.asked) >= 40)
    talking.cancel()
    await asyncio.gather(talking, return_exceptions=True)
    assert all(turn.num_cached == turn.num_prompt // 2 for user in users for turn in user.turns)
    await server.server.close()
    return server.asked


async def test_each_prompt_goes_on_from_the_answer_before() -> None:
    asked = await run(Habits())
    last: dict[str, list[int]] = {}
    for _, session, prompt in asked:
        before = last.get(session, [])
        assert prompt[: len(before)] == before
        assert not before or prompt[len(before)] == 7
        last[session] = prompt


@pytest.mark.parametrize("sends_drafts", [False, True])
async def test_follow_ups_are_announced_and_drafts_begin_their_prompts(sends_drafts: bool) -> None:
    asked = await run(Habits(advises=True, sends_drafts=sends_drafts))
    by_session: dict[str, list[tuple[str, Any]]] = {}
    for kind, session, prompt in asked:
        by_session.setdefault(session, []).append((kind, prompt))
    expected = ["typing", "draft", "ask"] if sends_drafts else ["typing", "ask"]
    for events in by_session.values():
        kinds = [kind for kind, _ in events]
        assert kinds[0] == "ask"
        assert kinds[1:] == (expected * len(kinds))[: len(kinds) - 1]
        drafts = [(prompt, later) for (kind, prompt), (_, later) in pairwise(events) if kind == "draft"]
        assert all(later[: len(prompt)] == prompt for prompt, later in drafts)


async def test_missed_advisories_are_never_sent() -> None:
    asked = await run(Habits(advises=True, missed_ratio=1.0))
    assert {kind for kind, _, _ in asked} == {"ask"}
