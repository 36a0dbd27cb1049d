"""A mixed load on a scheduler and an executor in this process, step by step, and what each step took.

Requests arrive at random, now thinly, now densely; lengths are drawn; some continue an earlier prompt and find it
cached. Time is the sum of the steps, so that a slow machine sees the same load as a fast one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from schedcore._core import AddStatus, BatchPlan, Scheduler, algorithms
from schedcore.api.types import EngineRequest
from worker.runner.executor import Executor

REPEAT_EVERY = 8  # steps; the repetition says how far equal steps differ
DENSITIES = (0.6, 1.8)  # times the rate, by turns
DENSITY_REQUESTS = 40  # until the other


@dataclass(frozen=True, slots=True)
class LoadShape:
    requests_per_second: float
    mean_prompt: int  # tokens; lengths are lognormal with sigma 1
    mean_output: int  # tokens; geometric
    longest_prompt: int
    vocab_size: int
    continued_share: float = 0.3  # of requests, that begin with an earlier prompt
    seed: int = 1


@dataclass(frozen=True, slots=True)
class LoadStep:
    features: algorithms.BatchFeatures
    seconds: float  # from schedule() to commit()
    again_seconds: float | None  # the same step once more, where it was repeated


class StepLoad:
    def __init__(self, core: Scheduler, executor: Executor, shape: LoadShape, clock: Callable[[], float]) -> None:
        self._core, self._executor, self._shape, self._clock = core, executor, shape, clock
        self._rng = np.random.default_rng(shape.seed)
        self._prompts: list[list[int]] = []
        self._now = self._next_arrival = 0.0
        self._num_requests = 0

    def steps(self, num_steps: int) -> Iterator[LoadStep]:
        for i in range(num_steps):
            while self._next_arrival <= self._now or not self._core.has_work():
                self._now = max(self._now, self._next_arrival)
                self._arrive()
            yield self._step(is_repeated=i % REPEAT_EVERY == 0)

    def _step(self, *, is_repeated: bool) -> LoadStep:
        begin = self._clock()
        plan = self._core.schedule(self._now)
        features = algorithms.plan_features(plan)
        result = self._executor.execute(plan)
        seconds = self._clock() - begin
        again = self._repeat(plan) if is_repeated else None
        self._now += seconds
        output = self._core.commit(result.sampled_token_ids, self._now)
        for request_id in output.request_ids[output.finish_reasons != 0].tolist():
            self._executor.remove_request(request_id)
        return LoadStep(features, seconds, again)

    def _repeat(self, plan: BatchPlan) -> float:
        begin = self._clock()
        self._executor.execute(plan)
        return self._clock() - begin

    def _arrive(self) -> None:
        self._num_requests += 1
        prompt, max_tokens = self._draw_prompt(), int(self._rng.geometric(1 / self._shape.mean_output))
        status = self._core.add_request(
            self._num_requests, prompt, max_tokens=max_tokens, arrival_time=self._next_arrival
        )
        if status != AddStatus.OK:
            raise ValueError(f"a prompt of {len(prompt)} tokens was refused")
        self._executor.add_request(EngineRequest(self._num_requests, prompt, max_tokens))
        density = DENSITIES[self._num_requests // DENSITY_REQUESTS % len(DENSITIES)]
        self._next_arrival += self._rng.exponential(1 / (density * self._shape.requests_per_second))

    def _draw_prompt(self) -> list[int]:
        shape, rng = self._shape, self._rng
        drawn = rng.lognormal(np.log(shape.mean_prompt) - 0.5, 1.0)
        new: list[int] = rng.integers(0, shape.vocab_size, max(2, min(int(drawn), shape.longest_prompt))).tolist()
        if self._prompts and rng.random() < shape.continued_share:
            new = [*self._prompts[rng.integers(max(0, len(self._prompts) - 16), len(self._prompts))], *new]
        prompt = new[: shape.longest_prompt]
        self._prompts.append(prompt)
        return prompt
