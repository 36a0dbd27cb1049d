"""A workload of the simulator, live: the same arrivals, lengths, shared prefixes and conversations, against a server.

Poisson, gamma and traced arrivals, pauses between the turns of a conversation and classes come from
schedcore/simulation. Prompts are token ids. What a workload takes for the answer in a conversation's history is made
up, so a prefix cache helps as far as the last prompt goes, on every server alike.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from bench.lib.load.load_client import LoadClient
from bench.lib.load.request_trace import RequestTrace
from schedcore.api.types import RequestClass
from schedcore.simulation.workloads.workload import NO_REQUEST, Workload

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Addressee:
    """What a server has to be told in a request's body."""

    model: str
    vocab_size: int
    fields: Mapping[RequestClass, Fields] = field(default_factory=dict)  # such as service_tier, per class

    def body(self, prompt: Sequence[int], max_tokens: int, request_class: RequestClass) -> bytes:
        """A greedy streaming completion of exactly max_tokens."""
        request = {
            "model": self.model,
            "prompt": [token % self.vocab_size for token in prompt],
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return orjson.dumps(request | dict(self.fields.get(request_class, {})))


def bodies(workload: Workload, addressee: Addressee, part: int = 0) -> list[bytes]:
    """Per request. Workloads of different parts share no prefix: nothing of the one is in a cache for the other."""
    prompts = workload.prompts.in_part(part)
    return [
        addressee.body(prompts.prompt_token_ids(i).tolist(), int(num_tokens), RequestClass(int(request_class)))
        for i, (num_tokens, request_class) in enumerate(
            zip(workload.output_tokens, workload.request_class, strict=True)
        )
    ]


async def drive(client: LoadClient, workload: Workload, bodies: Sequence[bytes]) -> list[RequestTrace]:
    """One trace per request, in the workload's order; returns when the last has ended.

    Arrivals count from now, and from when a request is due, also if the client is late. A turn whose conversation has
    failed before is not sent, and fails.
    """
    start = time.perf_counter()
    follower = {int(leader): i for i, leader in enumerate(workload.follows) if leader != NO_REQUEST}
    traces: dict[int, RequestTrace] = {}

    async def converse(request: int | None) -> None:
        due = start
        while request is not None:
            due += float(workload.arrival_s[request])
            await asyncio.sleep(due - time.perf_counter())
            traces[request] = trace = await client.exchange(bodies[request], due)
            client.read_all()
            due, request = trace.completion, follower.get(request)
            while trace.error and request is not None:
                traces[request] = RequestTrace(due, completion=due, error="the turn before failed")
                request = follower.get(request)

    async with asyncio.TaskGroup() as group:
        for request, leader in enumerate(workload.follows):
            if leader == NO_REQUEST:
                group.create_task(converse(request))
    return [traces[request] for request in range(len(workload))]
