"""Times single steps of chosen shapes: the real scheduler makes the plan, the real executor runs it.

What a step finds in the cache is not computed but declared: a filling step gives every sequence its context without
running the model, so that a decode at a context of thousands costs nothing to set up. Vectors hold what the pool holds,
which takes as long to read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from schedcore._core import AddStatus, BatchPlan, Scheduler, SchedulerConfig, algorithms
from schedcore.api.types import EngineRequest, SamplingParams
from worker.calibration.step_shapes import ShapeLimits, StepShape
from worker.runner.executor import Executor

WARM_UP_SECONDS = 0.01  # a decode behind a large step takes as long to be as fast as it is among its like
MAX_WARM_UPS = 50
LONG_SECONDS = 0.1  # a step of this length needs no warming up, and is not run again to be measured

_NO_LIMIT = 2**31 - 1
_FIRST_TOKEN = 0  # that a filling step samples, and commits instead of what the model says


@dataclass(frozen=True, slots=True)
class TimedStep:
    features: algorithms.BatchFeatures
    schedule_seconds: float
    execute_seconds: list[float]  # of the same plan, again and again


class StepTimer:
    """Owns the scheduler; the executor must have nobody else's requests."""

    def __init__(
        self,
        executor: Executor,
        adopt: Callable[[BatchPlan], None],
        limits: ShapeLimits,
        *,
        num_layers: int,
        layers_per_unit: int,
        num_units: int,
        vocab_size: int,
        clock: Callable[[], float],
        sampling: SamplingParams | None = None,
        hidden_units: int = 0,
    ) -> None:
        """adopt: takes over what a plan says about memory, without computing. sampling: of every request.

        hidden_units: of a hidden block per layer group; 0: there are no shapes of hidden-cached requests.
        """
        self._executor, self._adopt, self._clock = executor, adopt, clock
        self._sampling = sampling or SamplingParams()
        self._vocab_size = vocab_size
        settings: dict[str, Any] = {
            "num_units": num_units,
            "num_layers": num_layers,
            "layers_per_unit": layers_per_unit,
            "block_size": limits.block_size,
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.num_blocks * limits.block_size,  # a filling step takes all contexts
            "max_model_len": limits.max_model_len,
            "policy": "fcfs",
        }
        self._kv_core = self._core = Scheduler(SchedulerConfig(**settings))
        if hidden_units > 0:
            settings |= {"hidden_units_per_group": hidden_units, "cache_kind": "hidden"}
            self._hidden_core = Scheduler(SchedulerConfig(**settings))
        self._rng = np.random.default_rng(0)
        self._open: list[int] = []
        self._last_id = 0

    def measure(self, shape: StepShape, repeats: int) -> TimedStep:
        """Runs the step until it is warm, then `repeats` times; if it is long, only once, and that counts.

        Raises ValueError for a shape beyond the limits.
        """
        try:
            return self._measure(shape, repeats)
        finally:
            self._clean_up()

    def _measure(self, shape: StepShape, repeats: int) -> TimedStep:
        self._core = self._hidden_core if shape.is_hidden else self._kv_core
        prefixes = [self._prompt(chunk.context) for chunk in shape.chunks]
        for length in shape.decodes:
            self._add(self._prompt(length - 1))
        for prefix in filter(len, prefixes):
            self._add(prefix, max_tokens=1)
        if self._core.has_work():
            self._fill()
        for prefix, chunk in zip(prefixes, shape.chunks, strict=True):
            self._add([*prefix, *self._prompt(chunk.tokens)])

        begin = self._clock()
        plan = self._core.schedule(begin)
        schedule_seconds = self._clock() - begin
        features = algorithms.plan_features(plan)
        if (features.num_decodes, features.chunk_tokens) != (len(shape.decodes), shape.num_tokens - len(shape.decodes)):
            raise ValueError(f"the scheduler made a different step of {shape}")
        execute_seconds = self._repeat(plan, repeats)
        self._commit(plan)
        return TimedStep(features, schedule_seconds, execute_seconds)

    def _repeat(self, plan: BatchPlan, repeats: int) -> list[float]:
        spent = first = self._execute(plan)
        if first >= LONG_SECONDS:
            return [first]
        for _ in range(MAX_WARM_UPS):
            if spent >= WARM_UP_SECONDS:
                break
            spent += self._execute(plan)
        return [self._execute(plan) for _ in range(repeats)]

    def _execute(self, plan: BatchPlan) -> float:
        """Seconds."""
        begin = self._clock()
        self._executor.execute(plan)
        return self._clock() - begin

    def _fill(self) -> None:
        plan = self._core.schedule(self._clock())
        self._adopt(plan)
        self._commit(plan)

    def _commit(self, plan: BatchPlan) -> None:
        self._core.commit(np.full(len(plan.sample_seqs), _FIRST_TOKEN, np.int32), self._clock())

    def _add(self, prompt: list[int], max_tokens: int = _NO_LIMIT) -> None:
        self._last_id += 1
        status = self._core.add_request(self._last_id, prompt, max_tokens=max_tokens, arrival_time=self._clock())
        if status != AddStatus.OK:
            raise ValueError(f"a prompt of {len(prompt)} tokens was refused")
        self._executor.add_request(EngineRequest(self._last_id, prompt, max_tokens, self._sampling))
        self._open.append(self._last_id)

    def _prompt(self, num_tokens: int) -> list[int]:
        """Random, so that no two share a block."""
        tokens: list[int] = self._rng.integers(0, self._vocab_size, num_tokens).tolist()
        return tokens

    def _clean_up(self) -> None:
        for request_id in self._open:
            self._core.abort(request_id)
            self._executor.remove_request(request_id)
        self._open.clear()
        self._core.reset_prefix_cache()
