"""Seam 3: the engine loop ↔ anything that can execute a plan.

The model runner is the one that serves; tests have scripted ones.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from schedcore._core import BatchPlan
from schedcore.api.types import EngineRequest, TokenLogprobs


class StepResult(msgspec.Struct, frozen=True):
    """What one plan produced. Entries follow BatchPlan.sample_seqs."""

    sampled_token_ids: npt.NDArray[np.int32]  # [num_samples]; NO_TOKEN where the model gave numbers that are not finite
    logprobs: dict[int, TokenLogprobs] | None = None  # index into sampled_token_ids -> of that token, where asked for
    # request id -> log-probabilities of the prompt's tokens, on the step that completes the prompt, where asked for
    prompt_logprobs: dict[int, list[TokenLogprobs | None]] | None = None
    # request id -> its vector, float32, on the step that completes the prompt, where asked for
    vectors: dict[int, bytes] | None = None
    # request id -> why there was no token to choose, where what the request asked for excludes all
    problems: dict[int, str] | None = None


class Executor(Protocol):
    def add_request(self, request: EngineRequest) -> None:
        """The request was accepted by the core; called once, before the first plan that holds it."""

    def execute(self, plan: BatchPlan) -> StepResult:
        """Runs the plan. Reads its arrays, keeps none of them."""

    def remove_request(self, request_id: int) -> None:
        """The request is final; no later plan holds it."""
