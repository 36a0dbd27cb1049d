"""What another policy would have made of a recorded day: the record's requests, served again in simulated time.

Requests come when they came, with the same prompts and answers, so that they share the same prefixes. A step takes what
a latency model says that is fitted to the record's own steps. Serving the recorded policy again, beside what was
measured, shows how far that is from the truth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schedcore._core import AddStatus, BatchPlan, Scheduler, StepOutput, algorithms
from schedcore.api.types import RequestClass
from schedcore.latency.calibration import Calibration
from schedcore.latency.latency_profile import core_model
from schedcore.record.recipe import Recipe
from schedcore.record.recorded_requests import Recorded, RecordedRequest, take_output
from schedcore.record.replay import Replay
from schedcore.simulation.report import Distribution, distribution_ms, max_violations

Int32 = npt.NDArray[np.int32]


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """How the requests of one class fared; docs/metrics.md."""

    request_class: str
    num_requests: int
    num_refused: int
    slo_attainment_ratio: float | None
    ttft_ms: Distribution | None
    itl_ms: Distribution | None
    e2e_ms: Distribution | None
    cached_prompt_ratio: float


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """Measured on the recorded engine, or simulated."""

    is_simulated: bool
    policy: str
    duration_s: float
    num_steps: int
    mean_step_ms: float
    num_preemptions: int
    output_tokens_per_second: float
    classes: list[Served]


def recorded_course(recorded: Recorded, result: Replay) -> Course:
    seconds = [sample.seconds for sample in recorded.samples]
    return _course(recorded.answered(), result.policy, seconds, result.num_preemptions, is_simulated=False)


def serve_again(
    recorded: Recorded,
    fitted: Calibration,
    policy: str,
    options: dict[str, Any],
    on_progress: Callable[[int, int], None] | None = None,
) -> Course:
    """The scheduler believes of the machine what the recorded one did; one that knew nothing gets the fitted model.

    options: fields of SchedulerConfig. Raises ValueError if there are no such settings.
    """
    requests = recorded.answered()
    recipe = _with_estimates(recorded.scheduler, fitted)
    scheduler = _scheduler(recipe, {"max_num_waiting": len(requests), **options, "policy": policy})
    run = _Run(requests, scheduler, core_model(fitted.form, fitted.coefficients), recorded.start_s or 0.0)
    report = on_progress or (lambda done, total: None)
    while run.step():
        report(run.num_ended, len(requests))
    num_preemptions = int(scheduler.stats()["num_preemptions"])
    return _course(run.served, policy, run.step_seconds, num_preemptions, is_simulated=True)


def _with_estimates(recipe: Recipe, fitted: Calibration) -> Recipe:
    coefficients = Recipe("LatencyCoefficients", msgspec.structs.asdict(fitted.coefficients))
    latency = Recipe("LatencyModel", {"form": fitted.form, "coefficients": coefficients})
    return Recipe(recipe.kind, {"estimates": Recipe("Estimates", {"latency": latency}), **recipe.arguments})


def _scheduler(recipe: Recipe, options: dict[str, Any]) -> Scheduler:
    config = recipe.arguments["config"]
    assert isinstance(config, Recipe)
    changed = Recipe(config.kind, {**config.arguments, **options})
    try:
        scheduler = Recipe(recipe.kind, {**recipe.arguments, "config": changed}).build()
    except TypeError:
        settings = ", ".join(f"{name}={value}" for name, value in options.items())
        raise ValueError(f"the scheduler has no such settings: {settings}") from None
    assert isinstance(scheduler, Scheduler)
    return scheduler


class _Run:
    """Requests, a scheduler and a virtual clock. Request i of the scheduler is requests[i].

    A loop beside SimulationLoop's, which knows lengths only: here later prompts continue earlier answers and find them
    in the cache, so that every token has to be the recorded one, and an answer ends where the recorded one did without
    the scheduler knowing.
    """

    def __init__(
        self,
        requests: Sequence[RecordedRequest],
        scheduler: Scheduler,
        latency: algorithms.LatencyModel,
        start_s: float,
    ) -> None:
        self.served = [RecordedRequest(r.prompt, r.options) for r in requests]
        self.step_seconds: list[float] = []
        self.num_ended = 0
        self._requests, self._scheduler, self._latency = requests, scheduler, latency
        self._by_id = dict(enumerate(self.served))
        self._coming = deque(range(len(requests)))
        self._now = start_s

    def step(self) -> bool:
        """False if nothing is left to do."""
        self._take_arrivals()
        plan = self._scheduler.schedule(self._now)
        has_moved = self._end_moves(plan)
        if not plan:
            if self._coming and not has_moved:
                self._now = max(self._now, self._requests[self._coming[0]].arrival_s)
            return has_moved or bool(self._coming)
        seconds = self._latency.predict(algorithms.plan_features(plan))
        sampled = self._answers(plan)
        self._now += seconds
        self.step_seconds.append(seconds)
        output = self._scheduler.commit(sampled, self._now)
        take_output(output, self._by_id, self._now)
        self._end(output)
        return True

    def _end_moves(self, plan: BatchPlan) -> bool:
        """Copies between memory tiers take no time here. False if there are none."""
        if len(plan.move_ids) == 0:
            return False
        self._scheduler.complete_moves(plan.move_ids.copy())
        return True

    def _end(self, output: StepOutput) -> None:
        """The scheduler knows no better than the recorded one how long an answer will be; all end where they ended."""
        reasons = dict(zip(output.request_ids.tolist(), output.finish_reasons.tolist(), strict=True))
        for index, reason in reasons.items():
            served, length = self.served[index], len(self._requests[index].tokens)
            is_cut = not reason and len(served.tokens) >= length
            if is_cut:
                self._scheduler.abort(index)
                del served.tokens[length:], served.times_s[length:]  # behind a right guess
            self.num_ended += bool(reason) or is_cut

    def _take_arrivals(self) -> None:
        while self._coming and self._requests[self._coming[0]].arrival_s <= self._now:
            index = self._coming.popleft()
            request = self._requests[index]
            status = self._scheduler.add_request(index, request.prompt, **request.options)
            self.num_ended += status is not AddStatus.OK

    def _answers(self, plan: BatchPlan) -> Int32:
        """Token i of an answer is token i of the recorded one; what is guessed behind its end is cut off again."""
        ids, lengths = plan.request_ids[plan.sample_seqs].tolist(), plan.seq_lens[plan.sample_seqs].tolist()
        known = (
            (self._requests[i], length - len(self._requests[i].prompt)) for i, length in zip(ids, lengths, strict=True)
        )
        return np.array([request.tokens[min(index, len(request.tokens) - 1)] for request, index in known], np.int32)


# ---- metrics ----


def _course(
    requests: Sequence[RecordedRequest],
    policy: str,
    step_seconds: Sequence[float],
    num_preemptions: int,
    *,
    is_simulated: bool,
) -> Course:
    answered = [r for r in requests if r.tokens]
    ends = max((r.times_s[-1] for r in answered), default=0.0)
    duration_s = ends - min((r.arrival_s for r in requests), default=ends)
    num_outputs = sum(len(r.tokens) for r in answered)
    return Course(
        is_simulated=is_simulated,
        policy=policy,
        duration_s=duration_s,
        num_steps=len(step_seconds),
        mean_step_ms=1000 * sum(step_seconds) / max(len(step_seconds), 1),
        num_preemptions=num_preemptions,
        output_tokens_per_second=num_outputs / duration_s if duration_s > 0 else 0.0,
        classes=[
            _served(of_class, c) for c in RequestClass if (of_class := [r for r in requests if r.request_class == c])
        ],
    )


def _served(requests: Sequence[RecordedRequest], request_class: RequestClass) -> Served:
    answered = [r for r in requests if r.tokens]
    gaps = [np.diff(r.times_s) for r in answered]
    has_target = any(min(r.target_s("ttft"), r.target_s("itl"), r.target_s("tpot")) < float("inf") for r in requests)
    num_attained = sum(_attains(r) for r in answered)
    num_prompt_tokens = sum(len(r.prompt) for r in answered)
    return Served(
        request_class=request_class.name.lower(),
        num_requests=len(requests),
        num_refused=len(requests) - len(answered),
        slo_attainment_ratio=num_attained / len(requests) if has_target else None,
        ttft_ms=distribution_ms(np.array([r.times_s[0] - r.arrival_s for r in answered])),
        itl_ms=distribution_ms(np.concatenate([*gaps, np.empty(0)])),
        e2e_ms=distribution_ms(np.array([r.times_s[-1] - r.arrival_s for r in answered])),
        cached_prompt_ratio=sum(r.num_cached_tokens for r in answered) / max(num_prompt_tokens, 1),
    )


def _attains(request: RecordedRequest) -> bool:
    gaps = np.diff(request.times_s)
    num_long_gaps = int(np.count_nonzero(gaps > request.target_s("itl")))
    is_in_time = request.times_s[0] - request.arrival_s <= request.target_s("ttft")
    num_forgiven = float(max_violations(np.array(gaps.size, np.int32)))
    return is_in_time and num_long_gaps <= num_forgiven and _num_late_tokens(request) <= num_forgiven


def _num_late_tokens(request: RecordedRequest) -> int:
    """Of those after the first, by their cumulative deadlines (docs/metrics.md)."""
    has_ttft = request.target_s("ttft") < float("inf")
    first_due = request.arrival_s + request.target_s("ttft") if has_ttft else request.times_s[0]
    due = first_due + np.arange(1, len(request.times_s)) * request.target_s("tpot")
    return int(np.count_nonzero(np.array(request.times_s[1:]) > due))
