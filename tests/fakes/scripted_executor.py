"""An executor without a model: request r's next token is a function of r and its position, or what a script says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from schedcore._core import BatchPlan
from schedcore.api.types import EngineRequest
from worker.runner.executor import StepResult

TokenRule = Callable[[EngineRequest, int], int]  # request, number of known tokens -> next token


def count_up(request: EngineRequest, num_known: int) -> int:
    """The output is 0, 1, 2, ..."""
    return num_known - len(request.prompt_token_ids)


class ScriptedExecutor:
    """Implements Executor; remembers what it was told."""

    def __init__(self, next_token: TokenRule = count_up, fail_at_step: int | None = None) -> None:
        self.requests: dict[int, EngineRequest] = {}
        self.num_steps = 0
        self._next_token, self._fail_at_step = next_token, fail_at_step

    def add_request(self, request: EngineRequest) -> None:
        assert request.request_id not in self.requests
        self.requests[request.request_id] = request

    def remove_request(self, request_id: int) -> None:
        del self.requests[request_id]

    def execute(self, plan: BatchPlan) -> StepResult:
        self.num_steps += 1
        if self.num_steps == self._fail_at_step:
            raise FloatingPointError("the accelerator is on fire")
        tokens = [
            self._next_token(self.requests[request_id], seq_len)
            for request_id, seq_len in zip(
                plan.request_ids[plan.sample_seqs].tolist(), plan.seq_lens[plan.sample_seqs].tolist(), strict=True
            )
        ]
        return StepResult(np.array(tokens, dtype=np.int32))
