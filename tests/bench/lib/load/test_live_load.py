"""A simulated workload against a server that answers over sockets."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench.lib.load.live_load import Addressee, bodies, drive
from bench.lib.load.load_client import LoadClient
from fakes.completions_server import CompletionsServer, running
from schedcore.api.types import RequestClass
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import NO_REQUEST, Workload, make_workload

ADDRESSEE = Addressee("fake-model", 100, {RequestClass.OFFLINE: {"service_tier": "flex"}})


def unrelated(arrivals: list[float], follows: list[int] | None = None) -> Workload:
    num = len(arrivals)
    return make_workload(arrivals, Prompts.unrelated([5] * num), [6] * num, follows=follows)


def test_bodies_say_lengths_and_the_fields_of_a_class() -> None:
    workload = unrelated([0.0]).merged(unrelated([0.0]).with_class(RequestClass.OFFLINE))
    online, offline = (json.loads(body) for body in bodies(workload, ADDRESSEE))
    assert len(online["prompt"]) == 5
    assert max(online["prompt"]) < 100
    assert (online["max_tokens"], online["ignore_eos"], online["stream"]) == (6, True, True)
    assert "service_tier" not in online
    assert offline["service_tier"] == "flex"


def test_prompts_of_two_parts_share_nothing() -> None:
    prompts = [json.loads(bodies(unrelated([0.0]), ADDRESSEE, part)[0])["prompt"] for part in (1, 1, 2)]
    assert prompts[0] == prompts[1]
    assert prompts[0] != prompts[2]


async def test_traces_count_from_the_time_a_request_is_due() -> None:
    workload = unrelated([0.0, 0.02, -5.0])
    async with running(CompletionsServer()) as url, LoadClient(url) as client:
        traces = await drive(client, workload, bodies(workload, ADDRESSEE))
    assert not any(trace.error for trace in traces)
    arrivals = np.array([trace.arrival for trace in traces])
    assert arrivals - arrivals[0] == pytest.approx([0.0, 0.02, -5.0])
    assert traces[2].ttft > 4.9


async def test_requests_go_out_although_nothing_is_answered() -> None:
    server = CompletionsServer(wait_for=12)
    workload = unrelated([0.001 * i for i in range(12)])
    async with running(server) as url, LoadClient(url) as client:
        traces = await drive(client, workload, bodies(workload, ADDRESSEE))
    assert server.max_in_flight == 12
    assert not any(trace.error for trace in traces)


async def test_a_turn_comes_after_the_answer_and_a_pause() -> None:
    workload = unrelated([0.0, 0.01, 0.01], follows=[NO_REQUEST, 0, 1])
    async with running(CompletionsServer()) as url, LoadClient(url) as client:
        first, second, third = await drive(client, workload, bodies(workload, ADDRESSEE))
    assert second.arrival == pytest.approx(first.completion + 0.01)
    assert third.arrival == pytest.approx(second.completion + 0.01)


async def test_a_conversation_ends_with_its_first_failure() -> None:
    workload = unrelated([0.0, 0.0, 0.0], follows=[NO_REQUEST, 0, 1])
    server = CompletionsServer(status=500)
    async with running(server) as url, LoadClient(url) as client:
        first, *rest = await drive(client, workload, bodies(workload, ADDRESSEE))
    assert "HTTP 500" in first.error
    assert [trace.error for trace in rest] == ["the turn before failed"] * 2
    assert len(server.requests) == 1
