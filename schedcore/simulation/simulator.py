"""Runs a workload on a simulated engine: the loop itself is C++ (cpp/core/simulation/simulation_loop.h)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from schedcore._core import algorithms, simulation
from schedcore.api.types import RequestClass
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.workloads.workload import NO_REQUEST, Workload

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt32 = npt.NDArray[np.uint32]

STEPS_PER_CALL = 20_000  # between two reports of progress
NUM_SAMPLES = 1000  # of the scheduler's state, about, over the time in which requests arrive

Progress = Callable[[int, int], None]  # requests ended, all requests; with a horizon: simulated seconds, all of them


@dataclass(frozen=True, slots=True)
class Records:
    """One entry per request, times in seconds, NaN for what did not happen. Symbols: docs/metrics.md."""

    outcome: UInt8
    arrival_s: Float64  # a_r
    scheduled_s: Float64  # s_r
    first_token_s: Float64  # f_r
    last_token_s: Float64  # c_r
    max_itl_s: Float64
    num_output_tokens: Int32  # n_r
    num_itl_violations: Int32  # gaps above the target
    num_tpot_violations: Int32  # tokens behind the first after their cumulative deadline
    num_cached_tokens: Int32
    num_preemptions: Int32


@dataclass(frozen=True, slots=True)
class Samples:
    """The scheduler's state over time; [num_samples] or [num_samples, classes]."""

    time_s: Float64
    num_running: Int64
    num_waiting: Int64
    num_free_units: Int64
    num_cached_units: Int64


@dataclass(frozen=True, slots=True)
class Actions:
    """How often which part of the scheduler acted."""

    num_preempted: list[int]  # per RequestClass
    num_conversions: list[int]  # of running requests, per Conversion of scheduler_stats.h
    num_ratio_steps: list[int]  # steps by what the b/r solver said in them, per RatioReason
    num_recomputed_tokens: int  # uncached ones, summed over steps
    num_hit_tokens: list[int]  # of cached prompt tokens: found on the device, the host, the disk
    num_restores: int  # requests that waited for a tier


@dataclass(frozen=True, slots=True)
class SimulationResult:
    workload: Workload
    engine: SimulatedEngine
    records: Records
    samples: Samples
    itl_histograms: list[Int64]  # by RequestClass; bins of cpp/core/estimates/itl_histogram.h
    horizon_s: float | None  # the run was to stop there
    end_s: float  # of the last step
    busy_s: float  # sum of step times
    num_steps: int
    num_scheduled_tokens: int  # over all steps; recomputed tokens count again
    num_scheduled_seqs: int  # over all steps
    num_preemptions: int
    num_evicted_blocks: int
    num_units: int
    actions: Actions
    token_request: UInt32  # of every token in order of time, if kept
    token_time_s: Float64


def simulate(
    workload: Workload,
    engine: SimulatedEngine,
    *,
    horizon_s: float | None = None,
    on_progress: Progress | None = None,
    keep_token_times: bool = False,
    error_seed: int = 0,
) -> SimulationResult:
    """Until every request has ended, or with a horizon: until the first step that ends there or later.

    error_seed: of the errors of step times, where the engine draws them (cpp/core/simulation/step_errors.h).
    What the horizon cuts off stays pending; what would arrive after it is not in the result's workload.
    The same arguments give the same result, bit by bit. Raises ValueError for what makes no sense.
    """
    if horizon_s is not None:
        if not horizon_s > 0:
            raise ValueError(f"the horizon must be positive, not {horizon_s:g} s")
        arrives = (workload.arrival_s < horizon_s) | (workload.follows != NO_REQUEST)
        workload = workload if arrives.all() else workload.select(arrives)
    loop = simulation.SimulationLoop(
        engine.scheduler_config(len(workload)),
        engine.estimates(),
        request_columns(workload),
        keep_token_times=keep_token_times,
        overlap_transfers=engine.overlap_transfers,
        step_errors=engine.cost.error_ratios if engine.draw_errors else (),
        error_seed=error_seed,
        sample_interval_s=(horizon_s or float(workload.arrival_s.max(initial=0.0))) / NUM_SAMPLES or 1.0,
    )
    report = on_progress or (lambda done, total: None)
    if horizon_s is None:
        while loop.run(STEPS_PER_CALL):
            report(loop.num_ended, len(workload))
    else:
        run_until(loop, horizon_s, slowest_step_s(engine), report)
    loop.check_invariants()
    token_request, token_time_s = loop.token_times()
    totals = loop.totals()
    actions = Actions(**totals.pop("actions"))
    return SimulationResult(
        workload,
        engine,
        Records(**loop.records()),
        Samples(**loop.samples()),
        [loop.itl_histogram(request_class) for request_class in RequestClass],
        horizon_s,
        **totals,
        actions=actions,
        token_request=token_request,
        token_time_s=token_time_s,
    )


def run_until(loop: simulation.SimulationLoop, horizon_s: float, slowest_s: float, report: Progress) -> None:
    """In slices of so few steps that none of them but a last single one can pass the horizon."""
    is_left = loop.now < horizon_s
    while is_left:
        start_s = loop.now
        num_steps = max(1, min(STEPS_PER_CALL, int((horizon_s - start_s) / slowest_s)))
        is_left = loop.run(num_steps) and loop.now < horizon_s
        slowest_s = max(slowest_s, (loop.now - start_s) / num_steps)  # steps may also wait for transfers
        report(int(min(loop.now, horizon_s)), int(horizon_s))


def slowest_step_s(engine: SimulatedEngine) -> float:
    """No step that computes takes longer: as many tokens and sequences as may be, each with the full context."""
    context = engine.context_length
    config = engine.scheduler_config(1)
    tokens, num_seqs = max(config.max_num_batched_tokens, context), config.max_num_seqs
    features = algorithms.BatchFeatures(
        num_chunks=float(num_seqs),
        chunk_tokens=float(tokens),
        chunk_pairs=2.0 * tokens * context,
        chunk_squares=float(tokens) ** 2,
        chunk_context=float(num_seqs) * context,
        num_decodes=float(num_seqs),
        decode_context=float(num_seqs) * context,
        max_context=float(context),
        hidden_tokens=float(num_seqs) * context if engine.enable_hidden_cache else 0.0,
    )
    error = engine.cost.error_ratios[-1] if engine.draw_errors else 1.0
    return max(error * engine.cost.to_core().predict(features), 1e-6)


def request_columns(workload: Workload) -> simulation.RequestColumns:
    prompts = workload.prompts
    return {
        "arrival_s": contiguous(workload.arrival_s, np.float64),
        "follows": contiguous(workload.follows, np.int32),
        "num_outputs": contiguous(workload.output_tokens, np.int32),
        "request_class": contiguous(workload.request_class, np.uint8),
        "priority": contiguous(workload.priority, np.int64),
        "ttft_target_s": contiguous(workload.ttft_target_ms / 1000, np.float64),
        "itl_target_s": contiguous(workload.itl_target_ms / 1000, np.float64),
        "tpot_target_s": contiguous(workload.tpot_target_ms / 1000, np.float64),
        "run_offsets": contiguous(prompts.offsets, np.int64),
        "run_streams": contiguous(prompts.streams, np.uint64),
        "run_ends": contiguous(prompts.ends, np.int32),
        "continuations": contiguous(prompts.continuations, np.uint64),
    }


def contiguous(column: npt.NDArray[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(column, dtype)
