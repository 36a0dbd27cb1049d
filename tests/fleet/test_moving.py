"""Cache and streams that go from node to node, all real: the acceptance tests of docs/fleet.md, "Moving".

`make test` runs a short cut; HOCKET_TEST_FLEET=1 (`make test-fleet`) all of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.eventually import wait_until
from fakes.real_fleet import RealFleet, Streams, fleet
from gateway.fleet.operator_line import give_order
from schedcore.api.cluster_tls import OPERATOR, ClusterTls
from schedcore.api.fleet_wire import DrainNode

WHOLE = os.environ.get("HOCKET_TEST_FLEET", "") == "1"
long = pytest.mark.skipif(not WHOLE, reason="HOCKET_TEST_FLEET=1: make test-fleet")
NUM_TURNS = 40 if WHOLE else 6
NUM_STREAMS = 8 if WHOLE else 4
MAX_TOKENS = 1500
SECONDS = 120.0  # for what should take a few: the machine may be busy
ROUTING = ("--routing", "round_robin")  # however busy the machine is, it is plain who is chosen: requests take turns


@pytest.fixture
def running(tmp_path: Path, cluster_dir: Path) -> Iterator[RealFleet]:
    with fleet(tmp_path, cluster_dir, *ROUTING) as running:
        running.add("a")
        running.wait_for("a", "up")
        yield running


def post(url: str, **fields: object) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(url, json.dumps(fields).encode(), headers)
    with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def figures(running: RealFleet) -> dict[str, float]:
    with urllib.request.urlopen(f"{running.server.url}/metrics", timeout=SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


class Conversation:
    """Of completions: each turn's prompt is all that was said."""

    def __init__(self, running: RealFleet, session: str = "chat") -> None:
        self._url, self._session = running.server.url, session
        self.text = "This is what was said in the beginning, and it goes on for a while before anybody answers."

    def turn(self) -> dict[str, Any]:
        """The usage."""
        self.text += " And then? "
        answer = self._ask(self.text, session_id=self._session)
        self.text += answer["choices"][0]["text"]
        usage: dict[str, Any] = answer["usage"]
        return usage

    def advise(self) -> dict[str, Any]:
        return post(f"{self._url}/v1/advisories", session_id=self._session, lease_ms=60_000)

    def again(self, prompt: str, salt: str) -> str:
        """What is said where nothing is cached."""
        text: str = self._ask(prompt, cache_salt=salt)["choices"][0]["text"]
        return text

    def _ask(self, prompt: str, **fields: object) -> dict[str, Any]:
        fixed = {"prompt": prompt, "temperature": 0, "max_tokens": 12, "ignore_eos": True}
        return post(f"{self._url}/v1/completions", **fixed, **fields)


def advised_away(running: RealFleet) -> tuple[Conversation, Streams]:
    """A conversation at a, where streams run, too; b is told that its next turn will be there."""
    conversation = Conversation(running)
    for _ in range(NUM_TURNS):
        conversation.turn()
    running.add("b")
    running.wait_for("b", "up")
    streams = Streams(running.server.url, NUM_STREAMS, MAX_TOKENS)
    wait_until(lambda: streams.have_begun, SECONDS)

    def is_on_its_way() -> bool:
        if conversation.advise()["action"] == "prefetch":
            return True
        conversation.again("It is the other one's turn.", "")
        return False

    wait_until(is_on_its_way, SECONDS)
    return conversation, streams


def check_turn(conversation: Conversation) -> dict[str, Any]:
    before = conversation.text
    usage = conversation.turn()
    prompt = before + " And then? "
    assert conversation.text == prompt + conversation.again(prompt, f"salt {len(prompt)}")
    return usage


def test_an_advised_conversation_moves_to_an_idle_node(running: RealFleet) -> None:
    conversation, streams = advised_away(running)

    def is_there() -> bool:
        return figures(running)["hocket_pulled_bytes_total"] > 0 and conversation.advise()["action"] == "pin"

    wait_until(is_there, SECONDS)
    given = running.status()["b"]["num_given"]
    usage = check_turn(conversation)
    assert running.status()["b"]["num_given"] > given
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 0.95 * usage["prompt_tokens"] or usage["prompt_tokens"] - cached < 48, usage
    streams.wait()
    assert streams.ends == [["length"]] * NUM_STREAMS
    found = figures(running)
    assert found['hocket_session_moves_total{result="found"}'] >= 1
    assert found["hocket_unpulled_blocks_total"] == 0
    assert found["hocket_given_bytes_total"] >= found["hocket_pulled_bytes_total"]
    assert all(node["num_sessions"] >= 1 for node in running.status().values()), "a has its copy still"


@long
def test_a_conversation_whose_node_dies_while_it_moves_goes_on(running: RealFleet) -> None:
    conversation, streams = advised_away(running)
    os.kill(running.nodes["a"].engine_pid, signal.SIGKILL)
    check_turn(conversation)
    streams.wait()
    assert streams.ends == [["length"]] * NUM_STREAMS


def drain(running: RealFleet, name: str, cluster_dir: Path) -> None:
    order = DrainNode(name, SECONDS)
    asyncio.run(give_order(f"tcp://{running.address}", ClusterTls(cluster_dir, OPERATOR), order))


def test_a_drained_nodes_streams_go_on_elsewhere_with_the_same_tokens(running: RealFleet, cluster_dir: Path) -> None:
    talks = [Conversation(running, f"chat {i}") for i in range(3)]
    for talk in talks:
        talk.turn()
    running.add("b")
    running.wait_for("b", "up")
    streams = Streams(running.server.url, NUM_STREAMS, MAX_TOKENS)
    wait_until(lambda: streams.have_begun, SECONDS)
    drain(running, "a", cluster_dir)
    assert running.nodes["a"].manager.wait(SECONDS) == 0
    running.wait_for("a", "gone", SECONDS)
    assert running.status()["b"]["num_sessions"] == len(talks)
    assert figures(running)["hocket_pulled_bytes_total"] > 0
    for talk in talks:
        check_turn(talk)
    streams.wait()
    assert streams.ends == [["length"]] * NUM_STREAMS
    assert figures(running)['hocket_resumed_requests_total{cause="moved"}'] >= 1
    undisturbed = Streams(running.server.url, NUM_STREAMS, MAX_TOKENS)
    undisturbed.wait()
    assert ["".join(text) for text in streams.texts] == ["".join(text) for text in undisturbed.texts]


@long
def test_three_nodes_are_replaced_one_by_one_under_streams(running: RealFleet, cluster_dir: Path) -> None:
    for name in ("b", "c"):
        running.add(name)
    for name in ("b", "c"):
        running.wait_for(name, "up")
    number = 24
    streams = Streams(running.server.url, number, MAX_TOKENS)
    wait_until(lambda: streams.have_begun, SECONDS)
    for old, new in (("a", "a2"), ("b", "b2"), ("c", "c2")):
        running.add(new)
        running.wait_for(new, "up")
        drain(running, old, cluster_dir)
        assert running.nodes[old].manager.wait(SECONDS) == 0
    streams.wait()
    assert streams.ends == [["length"]] * number
    undisturbed = Streams(running.server.url, number, MAX_TOKENS)
    undisturbed.wait()
    assert ["".join(text) for text in streams.texts] == ["".join(text) for text in undisturbed.texts]
