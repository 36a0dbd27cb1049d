"""Measures what steps of a loaded model cost, for the latency model (schedcore/calibration.py fits it).

Shapes are measured in rounds, each in another order, so that a disturbance of some seconds touches many shapes a little
instead of one entirely; the median over the rounds does not see it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from schedcore._core import algorithms
from schedcore.config import EngineConfig
from schedcore.step_measurements import MeasuredStep, StepMeasurements, measured_step
from worker import ops
from worker.layers.linear import make_linear
from worker.loaded_runner import LoadedRunner
from worker.step_inputs import apply_block_table_changes
from worker.step_shapes import ShapeLimits, StepShape, step_shapes
from worker.step_timer import StepTimer

Clock = Callable[[], float]  # seconds
Progress = Callable[[int, int], None]  # steps measured so far, of how many

MIN_ROUNDS, MAX_ROUNDS = 2, 12
REPEATS = 3  # of a step per round, when it is warm
PROJECTED_TOKENS = 1024
PROJECTIONS = 20


def measure_model(
    loaded: LoadedRunner,
    config: EngineConfig,
    *,
    seconds: float,
    progress: Progress = lambda done, total: None,
    clock: Clock = time.perf_counter,
) -> StepMeasurements:
    """For about `seconds`, but at least MIN_ROUNDS rounds. Raises ValueError if the limits leave too few shapes.

    The model must have no requests; its cache is overwritten.
    """
    fill_pool(loaded)
    limits = shape_limits(loaded, config)
    timer = make_timer(loaded, limits, clock)
    steps = measure_shapes(timer, step_shapes(limits), seconds, progress)
    return StepMeasurements(
        model=config.served_model_name or loaded.folder.name,
        device=device_name(loaded.device),
        steps=steps,
        hidden_token=projection_seconds(loaded, clock),
        source=f"hocket calibrate, {time.strftime('%Y-%m-%d', time.gmtime())}: {len(steps)} different steps, "
        f"{loaded.dtype_name}, {_threads(loaded.device)}, medians; a step lasts from schedule() to commit()",
        limits=f"up to {limits.max_num_seqs} sequences and {limits.max_num_tokens} tokens in a step, contexts up to "
        f"{limits.max_model_len}, {limits.num_blocks * limits.block_size} tokens in the cache; sampling at temperature "
        "1 without penalties or log-probabilities; hidden_token is not from steps: it is the time of the K and V "
        f"projections of {PROJECTED_TOKENS} tokens alone",
    )


def shape_limits(loaded: LoadedRunner, config: EngineConfig) -> ShapeLimits:
    memory = loaded.memory
    return ShapeLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_tokens=config.max_num_batched_tokens,
        max_model_len=memory.max_model_len,
        num_blocks=memory.num_units // memory.units_per_block,
        block_size=config.block_size,
    )


def make_timer(loaded: LoadedRunner, limits: ShapeLimits, clock: Clock) -> StepTimer:
    return StepTimer(
        loaded.runner,
        lambda plan: apply_block_table_changes(plan, loaded.pool),
        limits,
        num_layers=loaded.config.num_layers,
        layers_per_unit=loaded.memory.layers_per_unit,
        num_units=loaded.memory.num_units,
        vocab_size=loaded.config.vocab_size,
        clock=clock,
    )


def fill_pool(loaded: LoadedRunner) -> None:
    """Memory that nobody ever wrote is one page of zeros, which a CPU reads faster than any cache."""
    data = loaded.pool.data
    data[0].normal_()
    data[1:] = data[0]


def measure_shapes(
    timer: StepTimer,
    shapes: Sequence[StepShape],
    seconds: float,
    progress: Progress = lambda done, total: None,
    now: Clock = time.monotonic,
) -> list[MeasuredStep]:
    """In the order of the shapes. now: the clock that `seconds` are of."""
    rng = np.random.default_rng(0)
    features: dict[int, algorithms.BatchFeatures] = {}
    measured: list[list[float]] = [[] for _ in shapes]
    begin, done = now(), 0
    for num_rounds in range(1, MAX_ROUNDS + 1):
        round_begin = now()
        for i in rng.permutation(len(shapes)).tolist():
            step = timer.measure(shapes[i], REPEATS)
            features[i] = step.features
            measured[i] += [step.schedule_seconds + execute for execute in step.execute_seconds]
            done += 1
            progress(done, _total_steps(len(shapes), done, now() - begin, seconds))
        if num_rounds >= MIN_ROUNDS and now() - begin + (now() - round_begin) > seconds:
            break
    progress(done, done)
    return [measured_step(features[i], seconds_of) for i, seconds_of in enumerate(measured)]


def _total_steps(num_shapes: int, done: int, elapsed: float, seconds: float) -> int:
    """As many whole rounds as will fit, at the pace so far."""
    rounds = int(seconds / max(elapsed, 1e-9) * done / num_shapes)
    return max(num_shapes * min(max(rounds, MIN_ROUNDS), MAX_ROUNDS), done)


def projection_seconds(loaded: LoadedRunner, clock: Clock) -> float:
    """Per token, all layers: X -> K and V, a matrix product of the model's shape, dtype and device."""
    model, device = loaded.config, loaded.device
    weight = torch.randn(2 * model.kv_size, model.hidden_size, device=device).to(loaded.dtype)
    linear = make_linear(weight, None)
    x = torch.randn(PROJECTED_TOKENS, model.hidden_size, device=device)
    if device.type != "cpu":
        x = x.to(loaded.dtype)
    times = []
    with torch.inference_mode():
        for _ in range(PROJECTIONS):
            begin = clock()
            linear(x)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(clock() - begin)
    return float(np.median(times[1:])) * model.num_layers / PROJECTED_TOKENS


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'CPU'} ({ops.backend(device)})"


def _threads(device: torch.device) -> str:
    return f"{torch.get_num_threads()} CPU threads" if device.type == "cpu" else "one device"
