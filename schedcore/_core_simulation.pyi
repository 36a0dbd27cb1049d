"""schedcore._core.simulation: the scheduler under a virtual clock. Contract: cpp/core/simulation/simulation_loop.h.

`from schedcore._core import simulation`. Times are seconds of simulated time.
"""

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from schedcore._core import Estimates, SchedulerConfig

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]

ITL_SMALLEST_S: float  # bin b >= 1 of a histogram covers [smallest growth^(b-1), smallest growth^b)
ITL_GROWTH: float

class RequestColumns(TypedDict):
    """One entry per request, but for the runs of prompts: r has those in [run_offsets[r], run_offsets[r + 1])."""

    arrival_s: Float64  # from the start, or after the end of the request that it follows
    follows: Int32  # index of that request, or -1
    num_outputs: Int32
    request_class: UInt8
    priority: Int64
    ttft_target_s: Float64  # infinity: none
    itl_target_s: Float64
    tpot_target_s: Float64
    run_offsets: Int64
    run_streams: UInt64
    run_ends: Int32
    continuations: UInt64  # the stream of the answer

class SimulationLoop:
    def __init__(
        self,
        config: SchedulerConfig,
        estimates: Estimates,
        requests: RequestColumns,
        *,
        keep_token_times: bool = False,
        sample_interval_s: float = 0.0,
        overlap_transfers: bool = True,
        step_errors: Sequence[float] = (),
        error_seed: int = 0,
    ) -> None:
        """Reads the arrays in place: they must not change. step_errors: quantiles of true over predicted step times
        (cpp/core/simulation/step_errors.h). Raises ValueError or TypeError if something does not fit."""
    def run(self, max_steps: int) -> bool:
        """True if anything is left to do. Releases the GIL."""
    @property
    def now(self) -> float: ...
    @property
    def num_ended(self) -> int:
        """Requests finished or refused."""
    def records(self) -> dict[str, npt.NDArray[Any]]:
        """cpp/core/simulation/simulation_records.h, RequestRecords."""
    def samples(self) -> dict[str, npt.NDArray[Any]]:
        """cpp/core/simulation/simulation_records.h, SimulationSamples. num_running and num_waiting are
        [num_samples, 3]."""
    def totals(self) -> dict[str, Any]:
        """end_s, busy_s, num_steps, num_scheduled_tokens, num_scheduled_seqs, num_preemptions, num_evicted_blocks,
        num_units."""
    def itl_histogram(self, request_class: int) -> Int64: ...
    def token_times(self) -> tuple[UInt32, Float64]:
        """Request and time of every token, in order of time; empty unless kept."""
    def check_invariants(self) -> None: ...

def synthetic_tokens(stream: int, start: int, end: int) -> Int32:
    """The tokens of a stream at positions [start, end)."""
