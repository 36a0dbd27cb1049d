"""A crowd of requests, and an engine over vLLM in this process that serves it, steered by whatever."""

from __future__ import annotations

import random
from typing import Any

from schedcore.api.types import EngineRequest, FinishReason, RequestClass, SamplingParams, Targets
from vllm_engine.engine import VllmEngine

GATEWAY = b"test"


def requests(num: int, seed: int) -> list[EngineRequest]:
    """Some share a prefix; half of them sample, by a seed."""
    draw = random.Random(seed)
    prefix = [draw.randrange(10, 1000) for _ in range(64)]
    made = []
    for i in range(num):
        own = [draw.randrange(10, 1000) for _ in range(draw.randint(1, 200))]
        sampling = SamplingParams(temperature=0.0) if i % 2 else SamplingParams(temperature=1.0, seed=i)
        made.append(
            EngineRequest(
                i,
                [*prefix, *own] if draw.random() < 0.3 else own,
                draw.randint(1, 40),
                sampling,
                stop_token_ids=[5],
                request_class=RequestClass.OFFLINE if i % 3 == 0 else RequestClass.ONLINE,
                targets=Targets(ttft_ms=1000, itl_ms=50) if i % 5 == 0 else Targets(),
            )
        )
    return made


def serve(engine: VllmEngine, wanted: list[EngineRequest], steering: Any) -> dict[int, list[int]]:
    engine._core.scheduler.reset_prefix_cache()
    engine._core.scheduler.steer(steering)
    engine._steering = steering
    tokens: dict[int, list[int]] = {request.request_id: [] for request in wanted}
    num_ended, upcoming = 0, list(reversed(wanted))
    while num_ended < len(wanted):
        for _ in range(2):
            if upcoming:
                engine.add(GATEWAY, upcoming.pop())
        engine.step()
        for delta in engine.take_deltas().get(GATEWAY, []):
            assert delta.error is None
            tokens[delta.request_id] += delta.token_ids
            num_ended += delta.finish_reason is not FinishReason.NONE
    while engine.step():
        pass
    engine.check_invariants()
    return tokens
