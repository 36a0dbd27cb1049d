"""Runs an engine in this process until it has no work, invariants checked after every step."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from schedcore._core import BatchPlan
from schedcore.api.config import EngineConfig
from schedcore.api.types import EngineRequest, FinishReason, SamplingParams, TokenDelta
from worker.process.engine import Engine
from worker.process.engine_process import build_engine
from worker.runner.executor import StepResult

GATEWAY = b"gateway"
GREEDY = SamplingParams(temperature=0.0)


def make_engine(folder: Path, clock: Callable[[], float] = time.monotonic, **settings: Any) -> Engine:
    """A small engine on one thread, float32 unless told otherwise."""
    defaults = {
        "dtype": "float32",
        "device": "cpu",
        "num_threads": 1,
        "max_num_seqs": 16,
        "cache_memory_bytes": 8 << 20,
        "host_cache_bytes": 0,
    }
    return build_engine(EngineConfig(model=str(folder), **{**defaults, **settings}), clock(), clock)[0]


class PlanWatch(ABC):
    """An executor in the place of the engine's: it sees every plan before it has it executed."""

    def __init__(self, engine: Engine) -> None:
        self._inner, engine._executor = engine._executor, self

    @abstractmethod
    def note(self, plan: BatchPlan) -> None: ...

    def execute(self, plan: BatchPlan) -> StepResult:
        self.note(plan)
        return self._inner.execute(plan)

    def add_request(self, request: EngineRequest) -> None:
        self._inner.add_request(request)

    def remove_request(self, request_id: int) -> None:
        self._inner.remove_request(request_id)


def greedy_requests(prompts: Sequence[list[int]], num_tokens: int, first_id: int = 1) -> list[EngineRequest]:
    return [
        EngineRequest(request_id, prompt, max_tokens=num_tokens, sampling=GREEDY)
        for request_id, prompt in enumerate(prompts, first_id)
    ]


def collect(engine: Engine, into: dict[int, list[TokenDelta]]) -> None:
    for deltas in engine.take_deltas().values():
        for delta in deltas:
            into[delta.request_id].append(delta)


def run(engine: Engine, requests: Iterable[EngineRequest]) -> dict[int, list[TokenDelta]]:
    """Submits all at once. Deltas by request id, each ending with its only final one."""
    for request in requests:
        engine.add(GATEWAY, request)
    deltas: dict[int, list[TokenDelta]] = defaultdict(list)
    while engine.has_work():
        assert engine.step(), "the core has work but schedules nothing"
        engine.check_invariants()
        collect(engine, deltas)
    collect(engine, deltas)
    for request_id, of_request in deltas.items():
        assert [d.finish_reason != FinishReason.NONE for d in of_request] == [False] * (len(of_request) - 1) + [True], (
            f"request {request_id} ended {of_request}"
        )
    return deltas


def output_tokens(deltas: dict[int, list[TokenDelta]]) -> list[list[int]]:
    """In the order of request ids."""
    return [[token for delta in deltas[request_id] for token in delta.token_ids] for request_id in sorted(deltas)]
