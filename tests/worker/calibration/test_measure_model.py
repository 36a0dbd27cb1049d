"""Calibration: which steps it measures, that the timer makes exactly those, and that known costs are found again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from fakes.scripted_executor import ScriptedExecutor
from fakes.tiny_checkpoints import write_checkpoint
from schedcore._core import BatchPlan, algorithms
from schedcore.api.config import EngineConfig
from schedcore.latency.calibration import Calibration
from schedcore.latency.latency_profile import (
    NUM_RATIOS,
    ErrorStatistics,
    LatencyCoefficients,
    core_model,
    load_profile,
    save_profile,
)
from schedcore.latency.step_measurements import (
    MeasuredStep,
    StepMeasurements,
    calibration_report,
    error_ratios,
    measured_step,
)
from worker.batch.int8_cache import integers_and_scales
from worker.calibration.measure_model import MIN_ROUNDS, fill_pool, measure_model, measure_shapes
from worker.calibration.step_shapes import Chunk, ShapeLimits, StepShape, hidden_shapes, step_shapes
from worker.calibration.step_timer import LONG_SECONDS, StepTimer
from worker.runner.executor import StepResult
from worker.runner.loaded_runner import LoadedRunner, load_runner

LIMITS = ShapeLimits(max_num_seqs=64, max_num_tokens=512, max_model_len=2048, num_blocks=4096, block_size=16)
SMALL = ShapeLimits(max_num_seqs=8, max_num_tokens=64, max_model_len=256, num_blocks=60, block_size=8)
TRUTH = LatencyCoefficients(
    step_base=0.001,
    prefill_pair=2e-8,
    prefill_token=2e-5,
    prefill_context=3e-7,
    prefill_chunk=2e-4,
    decode_seq=4e-5,
    decode_context=2e-7,
    decode_far_context=2e-7,
    hidden_token=1e-6,
    overlap=0.0,
    near_context=9000.0,
)


class TimedExecutor(ScriptedExecutor):
    """Takes as long as a latency model says, on a clock of its own."""

    def __init__(self, slow_down: Callable[[int], float] = lambda step: 1.0) -> None:
        super().__init__()
        self.now = 0.0
        self.plans: list[tuple[list[int], list[int]]] = []  # query lengths and sequence lengths, as executed
        self._model, self._slow_down = core_model("corrected", TRUTH), slow_down

    def clock(self) -> float:
        return self.now

    def execute(self, plan: BatchPlan) -> StepResult:
        lengths = (plan.query_start[1:] - plan.query_start[:-1]).tolist()
        self.plans.append((lengths, plan.seq_lens.tolist()))
        self.now += self._model.predict(algorithms.plan_features(plan)) * self._slow_down(len(self.plans))
        return super().execute(plan)


def make_timer(executor: TimedExecutor, limits: ShapeLimits) -> StepTimer:
    return StepTimer(
        executor,
        lambda plan: None,
        limits,
        num_layers=2,
        layers_per_unit=2,
        num_units=2 * limits.num_blocks,
        vocab_size=1000,
        clock=executor.clock,
        hidden_units=1,
    )


@pytest.mark.parametrize("limits", [LIMITS, SMALL])
def test_shapes_keep_the_limits_and_cover_prompts_decodes_and_both(limits: ShapeLimits) -> None:
    shapes = step_shapes(limits)
    assert len(set(shapes)) == len(shapes) >= 20
    assert all(limits.allows(shape) for shape in shapes)
    kinds = [(bool(shape.chunks), bool(shape.decodes)) for shape in shapes]
    assert min(kinds.count(kind) for kind in ((True, False), (False, True), (True, True))) >= 5
    assert max(shape.num_tokens for shape in shapes) >= limits.max_num_tokens // 2
    assert max(len(shape.decodes) for shape in shapes) >= limits.max_num_seqs // 2
    assert any(len(shape.chunks) > 1 for shape in shapes)
    assert any(chunk.context > 0 for shape in shapes for chunk in shape.chunks)


def test_shapes_that_are_too_few_are_refused() -> None:
    with pytest.raises(ValueError, match="too few for a calibration"):
        step_shapes(ShapeLimits(max_num_seqs=1, max_num_tokens=2, max_model_len=4, num_blocks=2, block_size=4))


def test_the_timer_runs_the_shape_and_nothing_else() -> None:
    executor = TimedExecutor()
    shape = StepShape(decodes=(2, 33, 700), chunks=(Chunk(0, 40), Chunk(512, 2)))
    step = make_timer(executor, LIMITS).measure(shape, repeats=3)
    assert set(map(str, executor.plans)) == {str(([1, 1, 1, 40, 2], [2, 33, 700, 40, 514]))}
    expected = core_model("corrected", TRUTH).predict(step.features)
    assert step.execute_seconds == pytest.approx([expected] * 3)
    assert len(executor.plans) > 3  # it was warm before


def test_hidden_cached_contexts_are_projected_in_the_timers_steps() -> None:
    executor = TimedExecutor()
    timer = make_timer(executor, SMALL)
    shapes = hidden_shapes(SMALL)
    assert {bool(shape.chunks) for shape in shapes} == {True, False}
    for shape in shapes:
        features = timer.measure(shape, repeats=1).features
        assert features.hidden_tokens == sum(shape.decodes) - len(shape.decodes)  # all but the token of this step
        assert features.decode_context == sum(shape.decodes)
        assert not executor.requests
    assert timer.measure(StepShape(decodes=(9,)), repeats=1).features.hidden_tokens == 0


def test_what_projecting_costs_is_found_again() -> None:
    executor = TimedExecutor()
    shapes = step_shapes(LIMITS) + hidden_shapes(LIMITS)
    report = calibration_report(measurements(measure_shapes(make_timer(executor, LIMITS), shapes, seconds=0.0)))
    assert report.profile.coefficients.hidden_token == pytest.approx(TRUTH.hidden_token, rel=0.05)
    assert report.profile.host_bytes_per_second == 2e9


def test_a_long_step_runs_once() -> None:
    executor = TimedExecutor(slow_down=lambda step: 1000.0)
    step = make_timer(executor, LIMITS).measure(StepShape(decodes=(100,)), repeats=3)
    assert len(executor.plans) == len(step.execute_seconds) == 1
    assert step.execute_seconds[0] > LONG_SECONDS


def test_every_shape_becomes_its_step_one_after_the_other_and_leaves_nothing_behind() -> None:
    executor = TimedExecutor()
    timer = make_timer(executor, SMALL)
    for shape in step_shapes(SMALL):
        features = timer.measure(shape, repeats=1).features
        assert features.num_decodes == len(shape.decodes)
        assert features.decode_context == sum(shape.decodes)
        assert features.max_context == max(shape.decodes, default=0)
        assert features.chunk_tokens == sum(chunk.tokens for chunk in shape.chunks)
        assert features.chunk_context == sum(chunk.context for chunk in shape.chunks)
        assert not executor.requests


def measurements(steps: list[MeasuredStep]) -> StepMeasurements:
    return StepMeasurements(
        "m", "d", steps, hidden_token=3e-6, source="a script", limits="none", host_bytes_per_second=2e9
    )


def test_known_costs_are_found_again_and_disturbed_steps_do_no_harm(tmp_path: Path) -> None:
    executor = TimedExecutor(slow_down=lambda step: 5.0 if step % 37 == 0 else 1.0)
    steps = measure_shapes(make_timer(executor, LIMITS), step_shapes(LIMITS), seconds=0.0)
    report = calibration_report(measurements(steps))
    assert report.profile.error.mean < 0.005
    assert report.echo.held_out_error.mean > 0.2
    found = report.profile.coefficients
    for name in ("step_base", "prefill_token", "prefill_pair", "decode_seq", "decode_context", "decode_far_context"):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=0.1), name
    assert found.near_context == pytest.approx(TRUTH.near_context, rel=0.1)
    assert found.hidden_token == 3e-6
    assert len(report.profile.error_ratios) == NUM_RATIOS
    assert report.profile.error_ratios[NUM_RATIOS // 2] == pytest.approx(1.0, abs=0.01)
    save_profile(report.profile, tmp_path / "profile.json")
    assert load_profile(tmp_path / "profile.json") == report.profile


def test_rounds_fill_the_time_and_progress_ends_at_its_total() -> None:
    executor, seen = TimedExecutor(), []
    shapes = step_shapes(SMALL)
    measure_shapes(make_timer(executor, SMALL), shapes, 8.0, lambda *done: seen.append(done), executor.clock)
    assert seen[-1][0] == seen[-1][1]
    assert seen[-1][0] % len(shapes) == 0
    assert seen[-1][0] > MIN_ROUNDS * len(shapes)
    assert all(done <= total for done, total in seen)


def test_noise_is_the_spread_of_equal_steps() -> None:
    quiet = measured_step(algorithms.BatchFeatures(num_decodes=1.0), [2.0] * 9)
    loud = measured_step(algorithms.BatchFeatures(num_decodes=1.0), [1.0, 2.0, 3.0])
    assert (quiet.noise, loud.noise, loud.seconds) == (0.0, 0.5, 2.0)
    assert measurements([quiet, loud, loud]).noise == 0.5


def test_error_ratios_are_what_repeated_steps_are_off_by() -> None:
    steps = [MeasuredStep({"num_decodes": n, "decode_context": 0.0}, 0.01 * n * off, 0.1349) for n, off in OFF]
    fitted = Calibration("corrected", LatencyCoefficients(decode_seq=0.01), *NO_ERRORS, held_out=())
    ratios = error_ratios(steps, fitted)
    assert ratios[NUM_RATIOS // 2] == pytest.approx(1.0, abs=0.02)
    assert ratios[0] == pytest.approx(0.9 * (1 - 0.1 * 1.96), abs=0.01)  # the outermost of 20 normal deviates
    assert ratios[-1] == pytest.approx(1.1 * (1 + 0.1 * 1.96), abs=0.01)


OFF = ((4.0, 0.9), (8.0, 1.0), (16.0, 1.1))
NO_ERRORS = (ErrorStatistics(mean=0.0, median=0.0, p95=0.0, num_samples=1),) * 2


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = write_checkpoint(tmp_path_factory.mktemp("calibrated") / "tiny")
    settings = {"max_num_seqs": 4, "max_num_batched_tokens": 48, "max_model_len": 128, "cache_memory_bytes": 1 << 20}
    return EngineConfig(model=str(folder), device="cpu", dtype="float32", num_threads=1, **settings)


@pytest.fixture(scope="module")
def loaded(config: EngineConfig) -> LoadedRunner:
    return load_runner(config)


def test_a_real_model_is_measured(loaded: LoadedRunner, config: EngineConfig) -> None:
    found = measure_model(loaded, config, seconds=0.0, clock=time.thread_time)
    assert found.model == "tiny"
    assert all(step.seconds > 0 for step in found.steps)
    assert found.hidden_token > 0
    assert found.host_bytes_per_second > 0
    assert "up to 4 sequences and 48 tokens" in found.limits
    sent = msgspec.json.decode(msgspec.json.encode(found), type=StepMeasurements)
    profile = calibration_report(sent).profile
    assert profile.coefficients.hidden_token == found.hidden_token
    assert profile.to_model().predict(found.samples()[0].features) > 0


def test_the_pool_is_written_before_anything_is_measured(loaded: LoadedRunner) -> None:
    fill_pool(loaded)
    units = loaded.pool.data.flatten(1)
    assert torch.equal(units[0], units[-1])
    assert units[0].abs().min() > 0


def test_a_cache_in_int8_is_written_and_measured(config: EngineConfig) -> None:
    config = msgspec.structs.replace(config, kv_cache_dtype="int8")
    loaded = load_runner(config)
    found = measure_model(loaded, config, seconds=0.0, clock=time.thread_time)
    assert "float32 with the cache in int8" in found.source
    assert all(step.seconds > 0 for step in found.steps)
    fill_pool(loaded)
    integers, scales = integers_and_scales(loaded.pool.data, loaded.pool.num_kv_heads)
    assert integers.abs().max() > 100
    assert (scales > 0).all()


def test_calibrate_measures_a_cache_in_int8(config: EngineConfig) -> None:
    """The process, which measures hidden states wherever there may be some."""
    given = msgspec.json.encode(msgspec.structs.replace(config, kv_cache_dtype="int8"))
    command = [sys.executable, "-m", "worker.process.calibration_process", "--seconds", "0"]
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    assert b"cache in int8" in done.stdout
