"""bench/lib/soak/fleet_load.py: what a fleet's soak would find, on answers made by hand."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from bench.lib.soak.client import SoakClient
from bench.lib.soak.fleet_load import NUM_SESSIONS, NUM_TURNS, Answer, FleetLoad, stories, turns
from bench.lib.soak.ledger import Ledger

RIGHT = Answer("Once upon a time", ("length", "[DONE]"))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (RIGHT, ""),
        (Answer("Once upon upon a", RIGHT.ends), "from character 10 on"),
        (Answer("Once upon a", RIGHT.ends), "11 of 16 characters"),
        (Answer(RIGHT.text, ("length", "length", "[DONE]")), "it ended with"),
        (Answer(RIGHT.text, ("length",)), "it ended with"),
        (Answer("Once", ("error: the engine is gone",)), "it ended with"),
    ],
)
def test_a_wrong_token_and_a_wrong_end_are_noticed(answer: Answer, said: str) -> None:
    problem = answer.problem(RIGHT)
    assert said in problem
    assert bool(problem) == bool(said)


def line(number: int, text: str = RIGHT.text, status: int = 200) -> dict[str, Any]:
    body = {"choices": [{"text": text, "finish_reason": "length"}]}
    return {"custom_id": f"row-{number}", "response": {"status_code": status, "body": body}}


@pytest.mark.parametrize(
    ("status", "lines", "said"),
    [
        ("completed", [line(0), line(1)], ""),
        ("completed", [line(0)], "1 results"),
        ("completed", [line(0), line(1), line(1)], "2 of them different"),
        ("completed", [line(0), line(1, "Once more")], "row-1 (story 1)"),
        ("completed", [line(0), line(1, status=500)], "row-1: "),
        ("failed", [line(0), line(1)], "it is failed"),
    ],
)
async def test_a_lost_a_doubled_and_a_wrong_row_are_noticed(
    status: str, lines: list[dict[str, Any]], said: str
) -> None:
    client = SoakClient("http://127.0.0.1:1", "none")
    load = FleetLoad(client, "demo", Ledger(), asyncio.Event(), random.Random(1))
    load._expected = {"story 0": RIGHT, "story 1": RIGHT}
    problems = list(load._problems(["story 0", "story 1"], {"status": status}, lines))
    await client.close()
    assert bool(problems) == bool(said)
    assert all(said in problem for problem in problems)


def test_every_turn_begins_with_the_one_before() -> None:
    found = turns("demo")
    assert len(found) == NUM_SESSIONS * NUM_TURNS
    for session in range(NUM_SESSIONS):
        prompts = [found[f"session {session} turn {turn}"]["prompt"] for turn in range(NUM_TURNS)]
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(prompts))
    assert len({story["prompt"] for story in stories("demo").values()}) == len(stories("demo"))
