"""How well step times are predicted on the live worker: as the engine does it, by calibration alone, by Echo's form.

    python -m bench.run.parts.estimator [--models demo 15m 100m] [--steps 600] [--seconds 60] [--cpu-time] [--json]
    python -m bench.run.parts.estimator --short                    # the demo model, less than a minute

Per model: a calibration as by `hocket calibrate`, then a fresh load that mixes prompts and decodes through the real
scheduler and the real model, each step predicted before it runs. Errors are |predicted - measured| / measured.

    refined      the calibrated model, refined by the steps before, as in the engine; each prediction before its step
    calibrated   the same model as calibrated
    Echo's form  likewise, as the paper has it; and refined like ours

Steps that ran while other processes used the processor are left out, and their share is told, if enough others remain.
--cpu-time: one thread, and its CPU time instead of the wall clock, for machines that others use at the same time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from bench.lib.model.random_model import SHAPES, ensure_checkpoint
from bench.lib.model.step_load import LoadShape, LoadStep, StepLoad
from bench.lib.results import commit, cpu_name
from bench.lib.table import render
from schedcore._core import Scheduler, SchedulerConfig, algorithms
from schedcore.api.config import EngineConfig
from schedcore.api.model_path import DEMO
from schedcore.latency.latency_profile import ErrorStatistics, core_model, error_statistics
from schedcore.latency.step_measurements import CalibrationReport, calibration_report
from worker.batch.host_memory import make_resident
from worker.calibration.disturbance import Disturbance
from worker.calibration.measure_model import measure_model
from worker.runner.loaded_runner import LoadedRunner, load_runner

MEAN_PROMPT, MEAN_OUTPUT = 200, 30  # tokens
TYPICAL_BATCH = 24
UTILISATION = 1.15  # of a worker that decodes TYPICAL_BATCH at a time
OUTLIER = 0.5  # relative error beyond which a step was disturbed, or the model is blind to something
TARGET = 0.05
MAX_STEPS = 3  # times the steps asked for, until so many ran undisturbed
WAIT_SECONDS = 1.0  # for quiet, after a disturbance

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Result:
    model: str
    num_steps: int
    quiet_share: float  # of the steps that ran, while no other process used the processor; the others do not count
    mixed_share: float  # steps with prompts and decodes
    mean_step_ms: float
    mean_decodes: float
    calibration_noise: float  # interquartile range over median, of a typical calibration step
    repeat_difference: float  # mean relative difference of a step and its repetition: no prediction can be better
    outlier_share: float  # steps with an error of ours above OUTLIER
    calibration: ErrorStatistics  # ours, on calibration steps that were held out
    ours: ErrorStatistics  # as calibrated
    ours_without_outliers: float  # mean
    echo: ErrorStatistics
    refined: ErrorStatistics  # by what was learnt before each step
    echo_refined: ErrorStatistics
    predict_us: float


def engine_config(model: str, num_threads: int | None) -> EngineConfig:
    return EngineConfig(model=model, device="cpu", max_num_seqs=64, max_num_batched_tokens=512, num_threads=num_threads)


def measure(model: str, num_steps: int, seconds: float, *, is_cpu_time: bool) -> Result:
    clock = time.thread_time if is_cpu_time else time.perf_counter
    config = engine_config(model, 1 if is_cpu_time else None)
    loaded = load_runner(config)
    make_resident(loaded.pool.data).join()  # as it is soon after an engine's start
    gc.collect()
    gc.freeze()
    with progress_bar(f"calibrating {loaded.folder.name}") as show:
        found = measure_model(loaded, config, seconds=seconds, progress=show, clock=clock, is_cpu_time=is_cpu_time)
        report = calibration_report(found)
    with progress_bar(f"load on {loaded.folder.name}") as show:
        load = fresh_load(loaded, config, report, clock)
        steps, quiet_share = (list(load.steps(num_steps)), 1.0) if is_cpu_time else quiet_steps(load, num_steps, show)
    return summarise(loaded.folder.name, steps, report, quiet_share)


def quiet_steps(
    load: StepLoad, num_steps: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[list[LoadStep], float]:
    """Steps of windows in which no other process used the processor, and the share of those in all.

    Where there are too few of them in MAX_STEPS times as many: all steps, and their share.
    """
    disturbance, window = Disturbance(), []
    quiet, disturbed = [], []
    for step in load.steps(MAX_STEPS * num_steps):
        window.append(step)
        if not disturbance.is_due():
            continue
        was_disturbed = disturbance.was_disturbed()
        (disturbed if was_disturbed else quiet).extend(window)
        window = []
        progress(len(quiet), num_steps)
        if len(quiet) >= num_steps:
            break
        if was_disturbed:
            disturbance.wait_until_quiet(WAIT_SECONDS)
    share = len(quiet) / max(1, len(quiet) + len(disturbed))
    return (quiet if len(quiet) >= num_steps else quiet + disturbed + window), share


def fresh_load(loaded: LoadedRunner, config: EngineConfig, report: CalibrationReport, clock: Clock) -> StepLoad:
    core = Scheduler(
        SchedulerConfig(
            num_units=loaded.memory.num_units,
            num_layers=loaded.config.num_layers,
            layers_per_unit=loaded.memory.layers_per_unit,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=loaded.memory.max_model_len,
            policy="fcfs",
        )
    )
    shape = LoadShape(
        requests_per_second=UTILISATION / request_seconds(report.profile.to_model()),
        mean_prompt=MEAN_PROMPT,
        mean_output=MEAN_OUTPUT,
        longest_prompt=loaded.memory.max_model_len // 2,
        vocab_size=loaded.config.vocab_size,
    )
    return StepLoad(core, loaded.runner, shape, clock)


def request_seconds(model: algorithms.LatencyModel) -> float:
    """That a request keeps the worker busy, its share of the steps that it decodes in."""
    batch = algorithms.LatencyBatch(2 * MEAN_PROMPT)
    batch.add_chunk(0, MEAN_PROMPT)
    prompt = model.predict(batch.features)
    batch.clear()
    for _ in range(TYPICAL_BATCH):
        batch.add_decode(MEAN_PROMPT + MEAN_OUTPUT // 2)
    return prompt + MEAN_OUTPUT * model.predict(batch.features) / TYPICAL_BATCH


def summarise(model: str, steps: Sequence[LoadStep], report: CalibrationReport, quiet_share: float = 1.0) -> Result:
    measured = np.array([step.seconds for step in steps])
    ours = report.profile.to_model()
    echo = core_model("echo", report.echo.coefficients)
    predicted = np.array([ours.predict(step.features) for step in steps])
    errors = np.abs(predicted / measured - 1)
    repeats = [abs(s.again_seconds / s.seconds - 1) for s in steps if s.again_seconds is not None]
    return Result(
        model=model,
        num_steps=len(steps),
        quiet_share=quiet_share,
        mixed_share=float(np.mean([s.features.num_chunks > 0 and s.features.num_decodes > 0 for s in steps])),
        mean_step_ms=float(1000 * measured.mean()),
        mean_decodes=float(np.mean([s.features.num_decodes for s in steps])),
        calibration_noise=report.noise,
        repeat_difference=float(np.mean(repeats)),
        outlier_share=float(np.mean(errors > OUTLIER)),
        calibration=report.corrected.held_out_error,
        ours=error_statistics(predicted, measured),
        ours_without_outliers=float(errors[errors <= OUTLIER].mean()),
        echo=error_statistics([echo.predict(step.features) for step in steps], measured),
        refined=error_statistics(refine(ours, steps), measured),
        echo_refined=error_statistics(refine(echo, steps), measured),
        predict_us=predict_us(ours, steps),
    )


def refine(model: algorithms.LatencyModel, steps: Sequence[LoadStep]) -> list[float]:
    """Predictions of the steps, each made before the refinement saw it."""
    refiner = algorithms.LatencyRefiner(model)
    predictions = []
    for step in steps:
        predictions.append(refiner.model.predict(step.features))
        refiner.observe(step.features, step.seconds)
    return predictions


def predict_us(model: algorithms.LatencyModel, steps: Sequence[LoadStep]) -> float:
    """Of one prediction, the Python call included."""
    features = [step.features for step in steps]
    laps = []
    for _ in range(50):
        begin = time.perf_counter()
        for f in features:
            model.predict(f)
        laps.append((time.perf_counter() - begin) / len(features))
    return 1e6 * float(np.median(laps))


def describe(results: Sequence[Result]) -> str:
    """Markdown."""

    def cell(error: ErrorStatistics) -> str:
        return f"{error.mean:.1%} / {error.p95:.1%}"

    header = ("model", "refined", "calibrated", "Echo's form", "Echo's, refined", "repeated step", "outliers")
    rows = [
        [
            r.model,
            cell(r.refined),
            cell(r.ours),
            cell(r.echo),
            cell(r.echo_refined),
            f"{r.repeat_difference:.1%}",
            f"{r.outlier_share:.1%}",
        ]
        for r in results
    ]
    details = [detail(r) for r in results]
    verdicts = [f"{r.model}: {'met' if r.refined.mean <= TARGET else 'MISSED'}" for r in results]
    lines = [
        "relative error of predicted step times, mean / p95",
        "",
        render(header, rows),
        "",
        *details,
        f"target, refined at most {TARGET:.0%} on average: {', '.join(verdicts)}",
    ]
    return "\n".join(lines)


def detail(r: Result) -> str:
    return (
        f"{r.model}: {r.num_steps} steps ({r.quiet_share:.0%} of those that ran were undisturbed), "
        f"{r.mean_step_ms:.1f} ms and {r.mean_decodes:.1f} decodes on average, {r.mixed_share:.0%} mixed; "
        f"calibrated without outliers {r.ours_without_outliers:.1%}; on held-out calibration steps "
        f"{r.calibration.mean:.1%}, whose repetitions spread by {r.calibration_noise:.1%}; {r.predict_us:.2f} us per "
        f"prediction"
    )


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def main() -> None:
    parser = argparse.ArgumentParser(description="Errors of predicted step times on the live worker.")
    parser.add_argument("--models", nargs="+", choices=(DEMO, *SHAPES), default=[DEMO, "15m", "100m"])
    parser.add_argument("--steps", type=int, default=600, help="of the fresh load, per model (default: 600)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of calibration per model, about (default: 60)")
    parser.add_argument("--short", action="store_true", help="the demo model, 400 steps, 8 seconds of calibration")
    parser.add_argument("--cpu-time", action="store_true", help="CPU time of one thread instead of the wall clock")
    parser.add_argument("--folder", type=Path, default=Path("models"), help="of random models (default: models)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    models = [DEMO] if arguments.short else arguments.models
    num_steps, seconds = (400, 8.0) if arguments.short else (arguments.steps, arguments.seconds)
    load_average = os.getloadavg()[0]
    results = []
    for name in models:
        folder = DEMO if name == DEMO else str(ensure_checkpoint(name, arguments.folder))
        results.append(measure(folder, num_steps, seconds, is_cpu_time=arguments.cpu_time))
    if arguments.json:
        json.dump([asdict(r) | {k: to_dict(getattr(r, k)) for k in ERRORS} for r in results], sys.stdout, indent=2)
        return
    timing = "CPU time of one thread" if arguments.cpu_time else "wall clock, all cores"
    print(f"{cpu_name()}, {os.cpu_count()} cores; {timing}; load average before {load_average:.1f}; commit {commit()}")
    print(describe(results))


ERRORS = ("calibration", "ours", "echo", "refined", "echo_refined")


def to_dict(error: ErrorStatistics) -> dict[str, float]:
    return {name: getattr(error, name) for name in error.__struct_fields__}


if __name__ == "__main__":
    main()
