"""The C++ scheduling core (cpp/core) as Python sees it.

Times are seconds on one monotonic clock of the caller's choice.
"""

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

class AddStatus:
    OK: AddStatus
    QUEUE_FULL: AddStatus
    TOO_LONG: AddStatus  # could never be computed: see Scheduler::add_request in cpp/core/scheduler.h
    DUPLICATE_ID: AddStatus
    INVALID: AddStatus  # empty prompt, negative token id, max_tokens < 1, min_tokens < 0, bad class or arrival
    name: str  # of the member

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
    ) -> None:
        """Raises ValueError naming the field, also for a pool that cannot hold one request of one block."""
    @property
    def num_groups(self) -> int: ...
    @property
    def units_per_block(self) -> int: ...
    @property
    def max_blocks_per_seq(self) -> int: ...

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

    def __init__(self, config: SchedulerConfig) -> None: ...
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
    ) -> AddStatus: ...
    def abort(self, request_id: int) -> bool:
        """True if the request was live; its memory is free at once, or, if it is in the plan now being executed,
        after its commit, which then leaves it out of the StepOutput."""
    def schedule(self, now: float) -> BatchPlan: ...
    def commit(self, sampled_token_ids: Int32, now: float) -> StepOutput:
        """sampled_token_ids: [len(sample_seqs)]. Raises CoreError if no plan is open or the size differs."""
    def has_work(self) -> bool:
        """True while any request is waiting or running."""
    def stats(self) -> dict[str, Any]:
        """num_running, num_waiting (lists per class), num_waiting_tokens, num_units, num_free_units, num_cached_units,
        num_steps, num_prompt_tokens, num_output_tokens, num_cached_prompt_tokens, num_queried_prompt_tokens,
        num_preemptions, num_evicted_blocks, num_finished (list per FinishReason)."""
    def check_invariants(self) -> None:
        """Raises CoreError on the first broken one."""
    def reset_prefix_cache(self) -> int:
        """Drops every cached block that nobody runs; returns how many."""
