"""Runs a workload on a simulated engine: the loop itself is C++ (cpp/core/simulation_loop.h)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from schedcore._core import simulation
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.workload import Workload
from schedcore.types import RequestClass

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt32 = npt.NDArray[np.uint32]

STEPS_PER_CALL = 20_000  # between two reports of progress
NUM_SAMPLES = 1000  # of the scheduler's state, about, over the time in which requests arrive

Progress = Callable[[int, int], None]  # requests ended, all requests


class Outcome(IntEnum):
    """How a request ended; cpp/core/simulation_records.h."""

    PENDING = 0
    FINISHED = 1
    QUEUE_FULL = 2
    TOO_LONG = 3


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
    num_late_tokens: Int32  # tokens after their deadline
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
class SimulationResult:
    workload: Workload
    engine: SimulatedEngine
    records: Records
    samples: Samples
    itl_histograms: list[Int64]  # by RequestClass; bins of cpp/core/itl_histogram.h
    end_s: float
    busy_s: float  # sum of step times
    num_steps: int
    num_scheduled_tokens: int  # over all steps; recomputed tokens count again
    num_scheduled_seqs: int  # over all steps
    num_preemptions: int
    num_evicted_blocks: int
    num_units: int
    token_request: UInt32  # of every token in order of time, if kept
    token_time_s: Float64


def simulate(
    workload: Workload,
    engine: SimulatedEngine,
    *,
    on_progress: Progress | None = None,
    keep_token_times: bool = False,
) -> SimulationResult:
    """Until every request has ended. The same arguments give the same result, bit by bit.

    Raises ValueError for a workload or settings that make no sense.
    """
    loop = simulation.SimulationLoop(
        engine.scheduler_config(len(workload)),
        engine.cost.to_core(),
        request_columns(workload),
        keep_token_times=keep_token_times,
        sample_interval_s=float(workload.arrival_s.max(initial=0.0)) / NUM_SAMPLES or 1.0,
    )
    while loop.run(STEPS_PER_CALL):
        if on_progress is not None:
            on_progress(loop.num_ended, len(workload))
    loop.check_invariants()
    token_request, token_time_s = loop.token_times()
    return SimulationResult(
        workload,
        engine,
        Records(**loop.records()),
        Samples(**loop.samples()),
        [loop.itl_histogram(request_class) for request_class in RequestClass],
        **loop.totals(),
        token_request=token_request,
        token_time_s=token_time_s,
    )


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
        "run_offsets": contiguous(prompts.offsets, np.int64),
        "run_streams": contiguous(prompts.streams, np.uint64),
        "run_ends": contiguous(prompts.ends, np.int32),
        "continuations": contiguous(prompts.continuations, np.uint64),
    }


def contiguous(column: npt.NDArray[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(column, dtype)
