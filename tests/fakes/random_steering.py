"""In place of Steering over an advisor: anything that may be said to vLLM's scheduler."""

from __future__ import annotations

import random
from typing import Any

from vllm_engine.steering import StepAdvice


class RandomSteering:
    """Any order, grants, budgets, rests, admissions and preemptions."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._known: dict[str, Any] = {}
        self.num_preempted = 0

    @property
    def num_known(self) -> int:
        return len(self._known)

    def knows(self, request_id: str) -> bool:
        return request_id in self._known

    def retry_seconds(self, request: Any, num_cached: Any) -> None:
        return None

    def add(self, request: Any, num_cached: Any) -> None:
        assert num_cached() >= 0
        self._known[request.request_id] = request

    def end(self, request_id: str, is_complete: bool) -> None:
        self._known.pop(request_id, None)

    def advise(self, running: list[Any], num_free_blocks: int) -> StepAdvice:
        draw = self._random
        preempted = [request for request in running if draw.random() < 0.03]
        self.num_preempted += len(preempted)
        left = [request for request in running if request not in preempted]
        names = {request.request_id for request in running}
        waiting = [request for name, request in self._known.items() if name not in names]
        admitted = draw.sample(waiting, draw.randint(0, min(8, len(waiting))))
        limits = {r.request_id: draw.choice((1, 3, 16, 100, 1 << 20)) for r in admitted}
        if draw.random() < 0.7:  # else nobody who runs is limited
            limits |= {r.request_id: draw.choice((0, 1, 3, 16, 100)) for r in left if draw.random() < 0.7}
        order = draw.sample(left, len(left)) if draw.random() < 0.5 else []
        self._limits, self._budget = limits, draw.choice((8, 64, 256))
        return StepAdvice(self._budget, len(left) + len(admitted), limits, admitted, preempted, order)

    def note(self, step: Any, requests: Any) -> None:
        tokens = step.num_scheduled_tokens
        assert sum(tokens.values()) == step.total_num_scheduled_tokens <= self._budget
        assert all(n <= self._limits.get(name, n) for name, n in tokens.items())

    def commit(self, step: Any, outputs: Any) -> None:
        assert all(output.new_token_ids or output.finished for output in outputs)

    def check_invariants(self) -> None:
        assert not self._known
