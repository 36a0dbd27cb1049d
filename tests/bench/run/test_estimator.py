from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bench.lib.model.step_load import LoadShape, LoadStep, StepLoad
from bench.run.parts import estimator
from fakes.scripted_executor import ScriptedExecutor
from schedcore._core import BatchPlan, Scheduler, SchedulerConfig, algorithms
from schedcore.latency.calibration import StepSample, calibrate
from schedcore.latency.latency_profile import LatencyCoefficients, LatencyProfile, core_model
from schedcore.latency.step_measurements import CalibrationReport
from worker.runner.executor import StepResult

TRUTH = LatencyCoefficients(
    step_base=0.001, prefill_pair=2e-8, prefill_token=2e-5, decode_seq=4e-5, decode_context=2e-7, overlap=0.0
)
SHAPE = LoadShape(requests_per_second=200.0, mean_prompt=150, mean_output=20, longest_prompt=500, vocab_size=100)


class TimedExecutor(ScriptedExecutor):
    """Takes as long as a latency model says, on a clock of its own."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.now, self.factor, self._model = 0.0, factor, core_model("corrected", TRUTH)

    def execute(self, plan: BatchPlan) -> StepResult:
        self.now += self.factor * self._model.predict(algorithms.plan_features(plan))
        return super().execute(plan)


class JumpyExecutor(TimedExecutor):
    """Every second step takes twice as long."""

    def execute(self, plan: BatchPlan) -> StepResult:
        self.factor = 3.0 - self.factor
        return super().execute(plan)


def run(executor: TimedExecutor, num_steps: int, shape: LoadShape = SHAPE) -> list[LoadStep]:
    config = SchedulerConfig(
        num_units=4096, num_layers=2, layers_per_unit=2, max_num_seqs=32, max_num_batched_tokens=128, max_model_len=1024
    )
    return list(StepLoad(Scheduler(config), executor, shape, lambda: executor.now).steps(num_steps))


def report(steps: Sequence[LoadStep]) -> CalibrationReport:
    samples = [StepSample(step.features, step.seconds) for step in steps]
    corrected, echo = (calibrate(samples, form) for form in ("corrected", "echo"))
    error = corrected.held_out_error
    return CalibrationReport(
        LatencyProfile(model="m", device="d", coefficients=corrected.coefficients, error=error), corrected, echo, 0.0
    )


def test_the_load_mixes_prompts_and_decodes_and_continues_prompts() -> None:
    steps = run(TimedExecutor(), 600)
    features = [step.features for step in steps]
    assert len(steps) == 600
    assert np.mean([f.num_chunks > 0 and f.num_decodes > 0 for f in features]) > 0.3
    assert any(f.num_chunks == 0 for f in features)
    assert len({f.num_decodes for f in features}) > 10
    assert any(f.chunk_context >= 16 for f in features)


def test_the_load_is_the_same_again_and_another_with_another_seed() -> None:
    tokens = [
        [step.features.chunk_tokens for step in run(TimedExecutor(), 50, shape)]
        for shape in (SHAPE, SHAPE, LoadShape(200.0, 150, 20, 500, 100, seed=2))
    ]
    assert tokens[0] == tokens[1] != tokens[2]


def test_what_the_model_knows_is_predicted_and_a_repeated_step_is_no_different() -> None:
    steps = run(TimedExecutor(), 400)
    result = estimator.summarise("m", steps, report(steps))
    assert result.ours.mean < 0.01 < result.echo.mean
    assert result.repeat_difference == pytest.approx(0.0, abs=1e-9)
    assert result.outlier_share == 0.0


def test_refinement_follows_a_machine_that_became_slower() -> None:
    before = run(TimedExecutor(), 400)
    after = run(TimedExecutor(factor=1.3), 900)
    result = estimator.summarise("m", after, report(before))
    assert result.ours.mean == pytest.approx(0.3 / 1.3, abs=0.02)
    assert result.refined.num_samples == 900
    assert result.refined.mean < 0.5 * result.ours.mean


def test_the_table_names_every_model_and_says_whether_the_target_is_met() -> None:
    steps = run(TimedExecutor(), 200)
    good = estimator.summarise("good", steps, report(steps))
    text = estimator.describe([good, estimator.summarise("jumpy", run(JumpyExecutor(), 200), report(steps))])
    assert "good: met" in text
    assert "jumpy: MISSED" in text
    assert text.count("| good") == 1
