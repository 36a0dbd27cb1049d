"""The C++ scheduling core (cpp/core) as Python sees it.

Times are seconds on one monotonic clock of the caller's choice.
"""

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from schedcore import _core_algorithms, _core_simulation

algorithms = _core_algorithms  # a submodule
simulation = _core_simulation  # a submodule

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
UInt8 = npt.NDArray[np.uint8]

class CoreError(RuntimeError):
    """We are wrong: a broken invariant. The engine must stop."""

class AddStatus(enum.Enum):
    OK = ...
    QUEUE_FULL = ...
    TOO_LONG = ...  # could never be computed: see Scheduler::add_request in cpp/core/scheduler.h
    DUPLICATE_ID = ...
    INVALID = ...  # empty prompt, negative token id, max_tokens < 1, min_tokens < 0, bad class or arrival

class SchedulerConfig:
    def __init__(
        self,
        *,
        num_units: int,
        num_layers: int,
        layers_per_unit: int = 4,
        block_size: int = 16,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2048,
        max_model_len: int = 4096,
        max_num_waiting: int = 4096,
        policy: str = "fcfs",
        enable_prefix_caching: bool = True,
        enable_chunked_prefill: bool = True,
        hidden_units_per_group: int = 0,
        num_host_units: int = 0,
        num_host_blocks: int = 0,
        num_copy_blocks: int = 0,
        enable_disk: bool = False,
        cache_fingerprint: str = "",
        max_num_sessions: int = 4096,
        enable_mixed_steps: bool = True,
        token_composition: str = "greedy",
        restore: str = "faster",
        overlap_restores: bool = True,
        preemption: str = "recompute",
        cache_kind: str = "kv",
        enable_partial_caching: bool = False,
        refine_latency: bool = False,
        past_target_decay: float = 0.0,
        max_wait_ms: float = 60_000,
        max_offline_wait_ms: float = 86_400_000,
        max_offline_step_ms: float = 250.0,
        enable_residents: bool = True,
        enable_deadlines: bool = True,
        enable_plan_search: bool = True,
        enable_task_aware_eviction: bool = True,
        enable_reserve: bool = True,
    ) -> None:
        """cpp/core/config.h. Raises ValueError naming the field, TypeError for one that does not exist."""
    @property
    def num_groups(self) -> int: ...
    @property
    def units_per_block(self) -> int: ...
    @property
    def max_blocks_per_seq(self) -> int: ...

class Estimates:
    """What the scheduler believes of the machine (cpp/core/estimates.h). Unknown: None or 0."""

    def __init__(
        self,
        *,
        latency: _core_algorithms.LatencyModel | None = None,
        costs: _core_algorithms.StepCosts | None = None,
        host_bytes_per_second: float = 0.0,
        unit_bytes: float = 0.0,
        latency_deviation: float = 0.3,
        disk_bytes_per_second: float = 0.0,
        latency_margin: float = 1 / 0.95,
    ) -> None: ...
    @property
    def latency(self) -> _core_algorithms.LatencyModel: ...

class BatchPlan:
    """See cpp/core/batch_plan.h. Arrays are views, valid until the next schedule()."""

    step_id: int
    num_tokens: int
    num_seqs: int
    token_ids: Int32
    positions: Int32
    token_row: Int32
    request_ids: UInt64
    rows: Int32
    query_start: Int32
    seq_lens: Int32
    sample_seqs: Int32
    block_table_index: Int64
    block_table_unit: Int32
    preempted_ids: UInt64
    cache_kinds: Int32  # per sequence, or empty where no form other than KV is possible; so are the next three
    uncached_tokens: Int32
    hidden_tokens: Int32
    missing_tokens: Int32
    uncached_token_ids: Int32  # of all sequences, one after the other
    recomputed_layers: Int32  # per sequence; empty if nothing of uncached tokens is loaded
    copy_slots: Int32  # on the host
    projections: Int32  # [num_projections, 2], a copy: row and block index
    projected_units: Int32  # [num_projections * num_groups]
    transfers: list[tuple[int, int, int, int, int, bool, int]]  # HostTransfer's fields
    move_ids: Int32  # moves between tiers, also in a plan without anything to run; so are the next four
    move_kinds: Int32  # MoveKind: 0 save, 1 load, 2 store, 3 fetch, 4 load for this plan's step
    move_slots: Int32
    move_units: Int32  # [num_moves * units_per_block]
    move_keys: UInt64  # [num_moves, 2], a copy
    def __bool__(self) -> bool:
        """False if there is nothing to run."""

class StepOutput:
    """One entry per sampled token, in the order of BatchPlan.sample_seqs. Views, valid until the next commit()."""

    request_ids: UInt64
    token_ids: Int32
    finish_reasons: UInt8  # schedcore.types.FinishReason
    num_output_tokens: Int32
    num_cached_tokens: Int32  # prompt tokens served from the prefix cache at the request's first admission

class Scheduler:
    """Not thread-safe. schedule() and commit() alternate; add and abort may come in between, in any order."""

    def __init__(self, config: SchedulerConfig, estimates: Estimates | None = None) -> None: ...
    def add_request(
        self,
        request_id: int,
        prompt_token_ids: Sequence[int] | Int32,
        *,
        max_tokens: int,
        min_tokens: int = 0,
        stop_token_ids: Sequence[int] = (),
        request_class: int = 0,
        priority: int = 0,
        arrival_time: float = 0.0,
        ttft_target: float | None = None,
        itl_target: float | None = None,
        cache_salt: str = "",
        tenant: str = "",
        session_id: str = "",
    ) -> AddStatus: ...
    def abort(self, request_id: int) -> bool:
        """True if the request was live; its memory is free at once, or, if it is in the plan now being executed,
        after its commit, which then leaves it out of the StepOutput."""
    def schedule(self, now: float) -> BatchPlan: ...
    def commit(self, sampled_token_ids: Int32, now: float) -> StepOutput:
        """sampled_token_ids: [len(sample_seqs)]. Raises CoreError if no plan is open or the size differs."""
    def has_work(self) -> bool:
        """True while any request is waiting or running."""
    def complete_moves(self, done: Sequence[int] | Int32, failed: Sequence[int] | Int32 = ()) -> None:
        """Moves of earlier plans were carried out or failed, by their ids. Raises CoreError for one not under way."""
    def has_moves(self) -> bool:
        """True while moves are under way."""
    def has_background_work(self) -> bool:
        """True while there is something to write to disk, for which schedule() is to be called."""
    def note_on_disk(self, keys: UInt64) -> None:
        """keys: [num_blocks, 2]. The disk has these blocks."""
    def forget_on_disk(self, keys: UInt64) -> None:
        """keys: [num_blocks, 2]. The disk has these blocks no longer."""
    def advise(
        self,
        session_id: str,
        event: int,
        now: float,
        *,
        tenant: str = "",
        cache_salt: str = "",
        lease_seconds: float = 0.0,
        draft_token_ids: Sequence[int] | Int32 = (),
    ) -> tuple[bool, int, list[int], int, float | None]:
        """event: index into AdvisoryEvent. Returns is_known, num_tokens, tokens per tier, index into SessionAction,
        seconds left of the lease."""
    def stats(self) -> dict[str, Any]:
        """num_running, num_waiting (lists per class), num_waiting_tokens, num_units, num_free_units, num_cached_units,
        num_kind_tokens and num_kind_units (K and V, hidden), num_uncached_tokens, num_conversions (hidden to K and V,
        K and V to uncached, back),
        num_steps, num_prompt_tokens, num_output_tokens, num_cached_prompt_tokens, num_queried_prompt_tokens,
        num_preemptions, num_evicted_blocks, num_preempted and class_seconds (lists per RequestClass),
        offline_only_seconds, num_finished (list per FinishReason), step_time_error_ratio, and of tiers and sessions:
        cpp/core/scheduler_stats.h."""
    def latency(self) -> dict[str, Any]:
        """model (LatencyModel), mean_relative_error, num_held_out, num_observed: cpp/core/latency_refiner.h."""
    def check_invariants(self) -> None:
        """Raises CoreError on the first broken one."""
    def reset_prefix_cache(self) -> int:
        """Drops every cached block that nobody runs; returns how many."""
