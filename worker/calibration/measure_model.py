"""Measures what steps of a loaded model cost, for the latency model (schedcore/latency/calibration.py fits it).

Shapes are measured in rounds, each in another order, so that a disturbance of some seconds touches many shapes a little
instead of one entirely; the median over the rounds does not see it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from schedcore._core import algorithms
from schedcore.api.config import EngineConfig
from schedcore.latency.step_measurements import MeasuredStep, StepMeasurements, measured_step
from worker import ops
from worker.batch.int8_cache import integers_and_scales
from worker.calibration.disturbance import Disturbance
from worker.calibration.step_shapes import ShapeLimits, StepShape, hidden_shapes, step_shapes
from worker.calibration.step_timer import StepTimer
from worker.forms.cache_forms import hidden_ratio, hidden_units
from worker.forward.step_inputs import apply_block_table_changes
from worker.models.layers.linear import make_linear
from worker.runner.loaded_runner import LoadedRunner
from worker.tiers.host_tier import MEASURED_BYTES, HostTier, measure_bytes_per_second, num_slots

Clock = Callable[[], float]  # seconds
Progress = Callable[[int, int], None]  # steps measured so far, of how many

MIN_ROUNDS, MAX_ROUNDS = 2, 40
ENOUGH = 3  # undisturbed measurements of a shape
WAIT_SECONDS = 0.5  # for quiet, before the next measurement after a disturbed one
PATIENCE = 3  # times the seconds asked for, while a shape has not enough
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
    is_cpu_time: bool = False,
) -> StepMeasurements:
    """For about `seconds`, on a busy machine longer, but at least MIN_ROUNDS rounds.

    is_cpu_time: the clock stands still while others have the processor, so that they need not be watched.
    The model must have no requests; its cache is overwritten. Raises ValueError if the limits leave too few shapes.
    """
    fill_pool(loaded)
    limits = shape_limits(loaded, config)
    timer = make_timer(loaded, limits, clock)
    disturbance = None if is_cpu_time else Disturbance()
    shapes = step_shapes(limits) + (hidden_shapes(limits) if can_measure_hidden(loaded) else [])
    steps = measure_shapes(timer, shapes, seconds, progress, disturbance=disturbance)
    return StepMeasurements(
        model=config.served_model_name or loaded.folder.name,
        device=device_name(loaded.device),
        steps=steps,
        hidden_token=projection_seconds(loaded, clock),
        host_bytes_per_second=copy_bytes_per_second(loaded),
        source=f"hocket calibrate, {time.strftime('%Y-%m-%d', time.gmtime())}: {len(steps)} different steps, "
        f"{_dtypes(loaded)}, {_threads(loaded.device)}, medians; a step lasts from schedule() to commit()",
        limits=f"up to {limits.max_num_seqs} sequences and {limits.max_num_tokens} tokens in a step, contexts up to "
        f"{limits.max_model_len}, {limits.num_blocks * limits.block_size} tokens in the cache; sampling at temperature "
        "1 without penalties or log-probabilities" + _hidden_limits(loaded),
    )


def _dtypes(loaded: LoadedRunner) -> str:
    has_its_own = loaded.cache_dtype_name != loaded.dtype_name
    return loaded.dtype_name + (f" with the cache in {loaded.cache_dtype_name}" if has_its_own else "")


def can_measure_hidden(loaded: LoadedRunner) -> bool:
    """Whether hidden states gain anything, and the runner was loaded with what executes them."""
    return hidden_ratio(loaded.config) < 1 and loaded.pool.num_workspace_units > 0


def _hidden_limits(loaded: LoadedRunner) -> str:
    if can_measure_hidden(loaded):
        return ""
    return f"; hidden_token is not from steps, but the K and V projections of {PROJECTED_TOKENS} tokens alone"


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
        hidden_units=hidden_units(loaded.config) if can_measure_hidden(loaded) else 0,
    )


def fill_pool(loaded: LoadedRunner) -> None:
    """Memory that nobody ever wrote is one page of zeros, which a CPU reads faster than any cache."""
    data = loaded.pool.data
    if data.dtype is torch.int8:
        integers, scales = integers_and_scales(data[:1], loaded.pool.num_kv_heads)
        integers.random_(-127, 128)
        scales.fill_(1 / 64)
    else:
        data[0].normal_()
    data[1:] = data[0]


def measure_shapes(
    timer: StepTimer,
    shapes: Sequence[StepShape],
    seconds: float,
    progress: Progress = lambda done, total: None,
    now: Clock = time.monotonic,
    disturbance: Disturbance | None = None,
) -> list[MeasuredStep]:
    """In the order of the shapes. now: the clock that `seconds` are of.

    disturbance: if given, measurements while others used the processor do not count for a shape that has enough
    without, and shapes that have not are measured for up to PATIENCE times as long.
    """
    rounds = _Rounds(timer, shapes, disturbance)
    begin, done, order = now(), 0, list(range(len(shapes)))
    for num_rounds in range(1, MAX_ROUNDS + 1):
        round_begin = now()
        for _ in rounds.measure(order):
            done += 1
            progress(done, _total_steps(len(shapes), done, now() - begin, seconds))
        ends_at = now() - begin + (now() - round_begin)
        if num_rounds >= MIN_ROUNDS and ends_at > seconds:
            order = rounds.lacking()
            if not order or ends_at > PATIENCE * seconds:
                break
    progress(done, done)
    return rounds.results()


class _Rounds:
    """Measurements of windows in which we were disturbed are kept apart."""

    def __init__(self, timer: StepTimer, shapes: Sequence[StepShape], disturbance: Disturbance | None) -> None:
        self._timer, self._shapes, self._disturbance = timer, shapes, disturbance
        self._rng = np.random.default_rng(0)
        self._features: dict[int, algorithms.BatchFeatures] = {}
        self._quiet: list[list[float]] = [[] for _ in shapes]
        self._disturbed: list[list[float]] = [[] for _ in shapes]

    def measure(self, which: Sequence[int]) -> Iterator[int]:
        """One round over these shapes, in random order; yields each when it is measured."""
        window: list[tuple[int, list[float]]] = []
        order = self._rng.permutation(which).tolist()
        for i in order:
            step = self._timer.measure(self._shapes[i], REPEATS)
            self._features[i] = step.features
            window.append((i, [step.schedule_seconds + execute for execute in step.execute_seconds]))
            if i == order[-1] or self._disturbance is None or self._disturbance.is_due():
                self._close(window)
            yield i

    def lacking(self) -> list[int]:
        """Shapes without enough undisturbed measurements."""
        return [i for i, seconds in enumerate(self._quiet) if len(seconds) < ENOUGH]

    def results(self) -> list[MeasuredStep]:
        return [
            measured_step(self._features[i], quiet if len(quiet) >= ENOUGH else quiet + disturbed)
            for i, (quiet, disturbed) in enumerate(zip(self._quiet, self._disturbed, strict=True))
        ]

    def _close(self, window: list[tuple[int, list[float]]]) -> None:
        was_disturbed = self._disturbance is not None and self._disturbance.was_disturbed()
        for i, seconds in window:
            (self._disturbed if was_disturbed else self._quiet)[i].extend(seconds)
        window.clear()
        if self._disturbance is not None and was_disturbed:
            self._disturbance.wait_until_quiet(WAIT_SECONDS)


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


def copy_bytes_per_second(loaded: LoadedRunner) -> float:
    """From a host tier to the pool, while nothing else runs."""
    units_per_block = loaded.memory.units_per_block
    num_blocks = max(1, num_slots(MEASURED_BYTES, loaded.pool, units_per_block))
    return measure_bytes_per_second(loaded.pool, HostTier(loaded.pool, units_per_block, num_blocks))


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
    return f"{ops.num_threads()} CPU threads" if device.type == "cpu" else "one device"
