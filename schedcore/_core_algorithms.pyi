"""schedcore._core.algorithms: the core's algorithms one by one (cpp/core/<name>.h has the contracts).

`from schedcore._core import algorithms`. Arrays are one-dimensional; a wrong shape raises ValueError.
"""

from collections.abc import Callable, Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from schedcore._core import BatchPlan

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]

# cpp/core/solvers/knapsack.h

PAST_TARGET: int
MUST_SCHEDULE: int
RESIDENT_KV: int
RESIDENT_COMPACT: int

class Knapsack:
    def __init__(
        self, *, compact_seconds_per_unit: float = 0.0, past_target_decay: float = 0.0, kept_share: float = 0.0
    ) -> None: ...
    def solve(
        self,
        pending_seconds: Float32,
        kv_units: Int32,
        compact_units: Int32,
        flags: UInt8,
        keep_seconds: Float32,
        capacity: int,
    ) -> tuple[UInt8, float, int]:
        """Choices (0 skip, 1 compact, 2 KV), their value in seconds, the units they take."""

def knapsack_compact_units(kv_units: int, compact_ratio: float, block_units: int) -> int: ...

# cpp/core/estimates/latency_model.h, plan_features.h, latency_refiner.h, recursive_least_squares.h, max_tracker.h

class BatchFeatures:
    num_chunks: float
    chunk_tokens: float
    chunk_pairs: float
    chunk_squares: float
    chunk_context: float
    num_decodes: float
    decode_context: float
    max_context: float
    hidden_tokens: float
    def __init__(self, **fields: float) -> None: ...

class LatencyBatch:
    def __init__(self, max_context: int) -> None: ...
    @property
    def features(self) -> BatchFeatures: ...
    def add_chunk(self, context: int, tokens: int) -> None: ...
    def remove_chunk(self, context: int, tokens: int) -> None: ...
    def add_decode(self, context: int) -> None: ...
    def remove_decode(self, context: int) -> None: ...
    def add_hidden(self, tokens: int) -> None: ...
    def remove_hidden(self, tokens: int) -> None: ...
    def clear(self) -> None: ...

def plan_features(plan: BatchPlan) -> BatchFeatures:
    """Of a plan that schedule() returned, before the next one."""

class LatencyCoefficients:
    step_base: float
    prefill_floor: float
    prefill_pair: float
    prefill_token: float
    prefill_context: float
    prefill_chunk: float
    decode_base: float
    decode_seq: float
    decode_context: float
    decode_max_context: float
    decode_far_context: float
    hidden_token: float
    overlap: float
    near_context: float
    near_evicted: float
    def __init__(self, **fields: float) -> None: ...

class LatencyModel:
    def __init__(self, form: str, coefficients: LatencyCoefficients) -> None:
        """form: corrected or echo."""
    @property
    def form(self) -> str: ...
    @property
    def coefficients(self) -> LatencyCoefficients: ...
    def predict(self, features: BatchFeatures) -> float:
        """Seconds."""
    def regressors(self, features: BatchFeatures) -> Float64: ...
    def linear(self) -> Float64: ...

class LatencyRefiner:
    def __init__(
        self,
        model: LatencyModel,
        *,
        forgetting: float = ...,
        prior_deviation: float = ...,
        max_surprise: float = ...,
        speed_gain: float = ...,
        held_out_every: int = ...,
        error_memory: float = ...,
    ) -> None: ...
    def observe(self, features: BatchFeatures, seconds: float) -> None: ...
    @property
    def model(self) -> LatencyModel: ...
    @property
    def mean_relative_error(self) -> float: ...
    @property
    def num_held_out(self) -> int: ...
    @property
    def num_observed(self) -> int: ...

class RecursiveLeastSquares:
    def __init__(self, theta: Float64, variance: Float64, forgetting: float) -> None: ...
    def update(self, x: Float64, y: float, weight: float = 1.0) -> bool: ...
    @property
    def theta(self) -> Float64: ...
    def variance(self, index: int) -> float: ...

class MaxTracker:
    def __init__(self, limit: int) -> None: ...
    def add(self, value: int) -> None: ...
    def remove(self, value: int) -> None: ...
    def max(self) -> int: ...
    def clear(self) -> None: ...

# cpp/core/solvers/partial_cache_solver.h

class StepCosts:
    flops_per_token: float
    flops_per_pair: float
    flops_per_logit: float
    flops_per_second: float
    weight_bytes: float
    head_bytes: float
    kv_bytes_per_token: float
    workspace_bytes_per_token: float
    bytes_per_second: float
    def __init__(self, form: str, **fields: float) -> None:
        """form: flops or roofline."""

def solve_partial_cache(
    costs: StepCosts,
    lengths: Int32,
    memory_bytes: float,
    max_seconds: float,
    slack_seconds: Float64 | None = None,
    max_ratio: float = 1.0,
) -> tuple[int, float, float]:
    """Batch size (0: nothing is feasible), uncached ratio, seconds. slack_seconds: until each one's token is due."""

# cpp/core/estimates/memory_forecast.h

class MemoryForecast:
    def __init__(self, *, window_seconds: float = 3600.0, num_buckets: int = 120) -> None: ...
    def update(self, now: float, units: int) -> None:
        """Raises CoreError if time goes back."""
    def mean(self) -> float: ...
    def deviation(self) -> float: ...
    def reserve(self, num_deviations: float) -> int: ...

# cpp/core/solvers/overlap_planner.h

class OverlapPlan:
    @property
    def recomputed_layers(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def loaded_kind(self) -> int:
        """0 nothing, 1 KV, 2 hidden."""
    @property
    def workspace_layers(self) -> int: ...
    @property
    def seconds(self) -> float: ...

def paper_overlap(
    recompute_base_seconds: float, recompute_layer_seconds: float, swap_layer_seconds: float
) -> tuple[int, int, float]:
    """Recomputed layers, swapped layers, bubble in seconds."""

def plan_overlap(
    num_layers: int,
    *,
    compute_seconds: float,
    recompute_seconds: float,
    load_kv_seconds: float,
    load_hidden_seconds: float | None = None,
    project_seconds: float = 0.0,
) -> OverlapPlan: ...

# cpp/core/offline/offline_pool.h, block_hashes.h

class OfflinePool:
    def __init__(self) -> None: ...
    @staticmethod
    def bucket_of(num_tokens: int) -> int: ...
    def insert(self, request_id: int, num_prompt_tokens: int, path: UInt64, num_cached: int = 0) -> bool: ...
    def remove(self, request_id: int) -> bool: ...
    def take(self, request_id: int) -> bool: ...
    def next(self, bucket: int, num_cached_blocks: Callable[[int, UInt64], int]) -> int | None:
        """num_cached_blocks(request_id, path): leading blocks of the prompt that are in the cache."""
    def collect(self, bucket: int, max_requests: int, num_cached_blocks: Callable[[int, UInt64], int]) -> list[int]:
        """Request ids in an order in which next() and take() could give them; all stay in the pool."""
    def nearest_bucket(self, num_tokens: int) -> int | None: ...
    def best_cached_bucket(self) -> int | None: ...
    def note_cached(self, path: UInt64, num_blocks: int) -> None: ...
    def reference_counts(self, path: UInt64) -> UInt32: ...
    def __len__(self) -> int: ...
    def check_invariants(self) -> None: ...

def block_hashes(tokens: Int32, block_size: int, seed: int = 0) -> UInt64: ...

# cpp/core/offline/plan_search.h

class PlanCandidate:
    def __init__(
        self,
        *,
        context: int,
        remaining: int = 1,
        cached_tokens: int = 0,
        last_tokens: int = 0,
        is_resident: bool = True,
        value: float = 0.0,
    ) -> None: ...

class PlanBudgets:
    def __init__(
        self,
        *,
        max_seconds: float,
        max_tokens: int,
        max_requests: int,
        free_units: int,
        valuable_units: int,
        tokens_per_unit: float,
    ) -> None: ...

class PlanResult(TypedDict):
    tokens: Int32  # per candidate; 0: not in this step
    score: float
    seconds: float
    benefit: float
    punishment: float
    num_plans: int

class PlanSearch:
    def __init__(
        self,
        *,
        block_size: int = 16,
        units_per_block: int = 2,
        chunk_quantum: int = 16,
        max_plans: int = 512,
        decode_value: float = 1.0,
    ) -> None: ...
    def search(
        self,
        model: LatencyModel,
        candidates: Sequence[PlanCandidate],
        budgets: PlanBudgets,
        online_tokens: float,
        batch: LatencyBatch,
    ) -> PlanResult:
        """`batch` holds the online work; it gets the plan's."""
