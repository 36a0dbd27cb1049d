"""The load generator against a server whose behaviour is known."""

from __future__ import annotations

from typing import Any

import pytest

from bench.lib.load.load_client import LoadClient, closed_loop, kept_in_flight
from bench.lib.load.request_trace import RequestTrace
from bench.lib.load.workload import Workload
from fakes.completions_server import CompletionsServer, running
from fakes.eventually import eventually

WORKLOAD = Workload(prompt_len=5, output_len=6, vocab_size=100)
BODIES = [WORKLOAD.body(i, "fake-model") for i in range(12)]


async def send_one(server: CompletionsServer) -> RequestTrace:
    async with running(server) as url, LoadClient(url) as client:
        return await client.send(BODIES[0])


async def test_trace_holds_one_time_per_token_in_order() -> None:
    trace = await send_one(CompletionsServer())
    assert trace.error == ""
    assert (trace.num_prompt_tokens, trace.num_output_tokens) == (5, 6)
    assert len(trace.chunk_times) == 6
    assert trace.arrival < trace.chunk_times[0]
    assert trace.chunk_times == sorted(trace.chunk_times)
    assert trace.chunk_times[-1] <= trace.completion


async def test_coalesced_tokens_are_counted_by_usage() -> None:
    trace = await send_one(CompletionsServer(tokens_per_chunk=4))
    assert (trace.num_output_tokens, len(trace.chunk_times)) == (6, 2)


async def test_closing_chunk_without_a_token_is_no_token() -> None:
    trace = await send_one(CompletionsServer(has_closing_chunk=True))
    assert trace.error == ""
    assert len(trace.chunk_times) == 6


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        ({"status": 429}, "HTTP 429"),
        ({"num_missing_tokens": 2}, "4 output tokens instead of 6"),
        ({"is_cut_off": True}, "without [DONE]"),
        ({"error_event": "engine died"}, "engine died"),
    ],
)
async def test_failures_are_written_into_the_trace(behaviour: dict[str, Any], error: str) -> None:
    trace = await send_one(CompletionsServer(**behaviour))
    assert error in trace.error
    assert trace.completion > trace.arrival


async def test_unreachable_server_is_an_error_of_the_request() -> None:
    async with running(CompletionsServer()) as url:
        pass
    async with LoadClient(url) as client:
        trace = await client.send(BODIES[0])
    assert "Connect" in trace.error


async def test_model_name_is_the_servers_first() -> None:
    async with running(CompletionsServer()) as url, LoadClient(url) as client:
        assert await client.model_name() == "fake-model"


async def test_closed_loop_keeps_exactly_the_concurrency_in_flight() -> None:
    server = CompletionsServer(wait_for=4)  # would never answer with fewer in flight
    finished: list[RequestTrace] = []
    async with running(server) as url, LoadClient(url, finished.append) as client:
        traces = await closed_loop(client, BODIES, concurrency=4)
    assert server.max_in_flight == 4
    assert len(traces) == len(finished) == len(server.requests) == 12
    assert len({tuple(request["prompt"]) for request in server.requests}) == 12
    assert not any(trace.error for trace in traces)


async def test_work_kept_in_flight_behind_ends_with_what_is_in_front() -> None:
    server = CompletionsServer()
    async with running(server) as url, LoadClient(url) as client:
        async with kept_in_flight(client, (WORKLOAD.body(i, "fake-model") for i in range(10**6)), 3) as traces:
            await eventually(lambda: len(traces) >= 10)
        num_ended = len(traces)
        assert not (await client.send(BODIES[0])).error
    assert num_ended >= 10
    assert len(traces) == num_ended
    assert not any(trace.error for trace in traces)
