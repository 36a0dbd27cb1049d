"""The C++ scheduling core (cpp/core) as Python sees it.

Times are seconds on one monotonic clock of the caller's choice.
"""

import enum
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from schedcore import _core_algorithms, _core_routing, _core_simulation

algorithms = _core_algorithms  # a submodule
routing = _core_routing  # a submodule
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
    OVERLOADED = ...  # see cpp/core/requests/overload_control.h
    TOO_LONG = ...  # could never be computed: see Scheduler::add_request in cpp/core/scheduler/scheduler.h
    DUPLICATE_ID = ...
    INVALID = ...  # empty prompt, negative token id, max_tokens < 1, min_tokens < 0, bad class or arrival

class RequestClass(enum.IntEnum):
    """The three kinds of traffic, in order of precedence."""

    ONLINE = 0
    OFFLINE = 1
    ADVISORY = 2

class FinishReason(enum.IntEnum):
    """Why a request ended; every accepted request gets exactly one delta whose reason is not NONE."""

    NONE = 0
    STOP = 1  # a stop token or the end-of-sequence token was sampled
    LENGTH = 2  # max_tokens, or the model's context is full
    ABORT = 3  # the client or an operator ended it
    ERROR = 4  # refused or failed; TokenDelta.error says why

class AdvisoryEvent(enum.IntEnum):
    """What is known of a session. The first two announce a request."""

    TYPING = 0
    AGENT_STEP = 1
    CANCEL = 2  # the announced request will not come: the lease ends, the session stays known
    QUERY = 3  # changes nothing
    RELEASE = 4  # the session is over: the engine forgets it

class SessionAction(enum.IntEnum):
    """What an engine does about an advisory; the costliest of what it does."""

    NONE = 0  # nothing to do, or the session is unknown
    PIN = 1  # all of its cache is in device memory and is held there
    PREFETCH = 2  # cache comes up from the host or the disk
    DRAFT_PREFILL = 3  # what is missing of the draft is computed
    RELEASE = 4  # its lease ended, or the session is forgotten
    REFUSED = 5  # memory or the draft's length does not permit it

class CacheKind(enum.IntEnum):
    """What a block holds per layer group."""

    KV = 0
    HIDDEN = 1  # the input of the attention projections
    INT8 = 2  # K and V, rounded

class MoveKind(enum.IntEnum):
    """What moves between tiers, one block each."""

    SAVE = 0  # device -> host
    LOAD = 1  # host -> device
    STORE = 2  # host -> disk
    FETCH = 3  # disk -> host
    STEP_LOAD = 4  # host -> device, for the step of the plan

class RatioReason(enum.IntEnum):
    """Why the b/r solver recomputed nothing in a step, or that it did (cpp/core/solvers/residency.h)."""

    RECOMPUTES = 0
    NOT_ALLOWED = 1  # without partial caching, or under a policy that does not use it
    MEMORY_SUFFICES = 2
    UNKNOWN_TIMES = 3
    OTHERS_GIVE_WAY = 4  # somebody lost memory in the step: it is short as it is
    NOBODY_MAY_LACK = 5  # who is left out shares its first blocks, is late, or is owed a whole place
    TOO_FEW_BLOCKS = 6  # what could be given up lets nobody in
    COSTS_MORE = 7  # than who came in would bring
    TARGETS = 8  # the step would end after somebody's token is due

class SimulatedOutcome(enum.IntEnum):
    """How a simulated request ended."""

    PENDING = 0  # only in a run with a horizon
    FINISHED = 1
    QUEUE_FULL = 2
    TOO_LONG = 3
    OVERLOADED = 4

POLICIES: tuple[str, ...]
MAX_LAYERS_IN_FLIGHT: int  # of uncached tokens, loaded or in use at a time
NO_TOKEN: int  # sampled where the model gave numbers that are not finite

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
        int8_units_per_group: int = 0,
        num_host_units: int = 0,
        num_host_blocks: int = 0,
        num_copy_blocks: int = 0,
        enable_disk: bool = False,
        cache_fingerprint: str = "",
        max_num_sessions: int = 4096,
        enable_mixed_steps: bool = True,
        token_composition: str = "greedy",
        restore: str = "faster",
        save_sessions_only: bool = False,
        overlap_restores: bool = True,
        preemption: str = "recompute",
        cache_kind: str = "kv",
        enable_partial_caching: bool = False,
        refine_latency: bool = False,
        max_guessed_tokens: int = 0,
        past_target_decay: float = 0.0,
        max_wait_ms: float = 60_000,
        max_offline_wait_ms: float = 86_400_000,
        starving_turn_ms: float = math.inf,
        max_ttft_ms: float = math.inf,
        max_decode_step_ms: float = math.inf,
        deadline_quantile: float = 0.999,
        length_quantile: float = 0.0,
        max_offline_step_ms: float = 100.0,
        enable_residents: bool = True,
        enable_deadlines: bool = True,
        enable_plan_search: bool = True,
        enable_task_aware_eviction: bool = True,
        enable_reserve: bool = True,
        reserve_deviations: float = -1.0,
    ) -> None:
        """cpp/core/base/config.h. Raises ValueError naming the field, TypeError for one that does not exist."""
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def max_num_batched_tokens(self) -> int: ...
    @property
    def num_groups(self) -> int: ...
    @property
    def units_per_block(self) -> int: ...
    @property
    def max_blocks_per_seq(self) -> int: ...

class Estimates:
    """What the scheduler believes of the machine (cpp/core/estimates/estimates.h). Unknown: None or 0."""

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
    def itl_seconds(self, max_num_seqs: int) -> float:
        """Between tokens, that this machine can keep; infinite while nothing is known of step times."""

class BatchPlan:
    """See cpp/core/base/batch_plan.h. Arrays are views, valid until the next schedule()."""

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
    cache_kinds: Int32  # CacheKind per sequence, or empty where nobody's tokens have another form than KV
    uncached_tokens: Int32  # per sequence, or empty likewise or where int8 is the only other kind; so are the next two
    hidden_tokens: Int32
    missing_tokens: Int32
    uncached_token_ids: Int32  # of all sequences, one after the other
    recomputed_layers: Int32  # per sequence; empty if nothing of uncached tokens is loaded
    copy_slots: Int32  # on the host
    projections: Int32  # [num_projections, 2], a copy: row and block index
    projected_units: Int32  # [num_projections * num_groups]
    roundings: Int32  # [num_roundings, 2], a copy: row and block index
    rounded_units: Int32  # [num_roundings * num_groups * 2]
    transfers: list[tuple[int, int, int, int, int, bool, int]]  # HostTransfer's fields
    num_saves: int  # of the moves, the first ones
    move_ids: Int32  # moves between tiers, also in a plan without anything to run; so are the next five
    move_kinds: Int32  # MoveKind
    move_slots: Int32
    move_peers: Int32  # of fetches: whom from; -1: the disk
    move_units: Int32  # [num_moves * units_per_block]
    move_keys: UInt64  # [num_moves, 2], a copy
    def __bool__(self) -> bool:
        """False if there is nothing to run."""

class StepOutput:
    """One entry per token that a request got, in the order of BatchPlan.sample_seqs; those of one request, if it got
    several, stand together. Views, valid until the next commit()."""

    request_ids: UInt64
    token_ids: Int32
    finish_reasons: UInt8  # FinishReason
    num_output_tokens: Int32
    num_cached_tokens: Int32  # prompt tokens served from the prefix cache at the request's first admission
    sample_indices: Int32  # the entries of BatchPlan.sample_seqs that the tokens came from

# cpp/core/system/giving_way.h, of the calling thread, by SIGALRM: what sleeps inside is woken by it. Only one thread
# may compute, and nobody else may use SIGALRM until the end.
def begin_giving_way() -> bool: ...  # False where the system has no timer for it
def end_giving_way() -> None: ...
def num_rests() -> int: ...  # since the process began
def block_keys(fingerprint: str, cache_salt: str, token_ids: Sequence[int] | Int32, block_size: int) -> UInt64:
    """[n, 2]: the names of the complete blocks, across tiers and machines. Raises ValueError."""

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
        tpot_target: float | None = None,
        cache_salt: str = "",
        tenant: str = "",
        session_id: str = "",
        num_prior_tokens: int = 0,
        last_token_time: float | None = None,
        is_guessable: bool = True,
    ) -> AddStatus:
        """num_prior_tokens: the prompt's last ones that are output already, the last of them at last_token_time
        (None: at arrival_time). max_tokens counts the rest, min_tokens all output. is_guessable: whether what it
        samples behind tokens that are only guessed is what it would sample behind known ones.
        """
    def retry_seconds(self) -> float:
        """Until an online request like the one last refused as OVERLOADED would be accepted, as it seems now."""
    def abort(self, request_id: int) -> bool:
        """True if the request was live; its memory is free at once, or, if it is in the plan now being executed,
        after its commit, which then leaves it out of the StepOutput."""
    def force(self, request_id: int, token_ids: Sequence[int] | Int32) -> bool:
        """The request's next tokens, where its grammar leaves no others: computed in one step where that pays, and
        compared with what is sampled, as guesses are. They count until its next token. False: it is not live, or
        max_guessed_tokens is 0. Raises CoreError while a plan is open, or for a negative token.
        """
    # A small model that guesses (cpp/core/speculation/model_guesses.h). The first two raise CoreError while a plan is
    # open.
    def ask_model(self, now: float) -> tuple[int, list[tuple[int, Int32, int]]]:
        """How many tokens of each it is to guess, and of whom: request id, the tokens so far (a copy), how many of them
        are output. Nobody where that does not pay, or before note_model()."""
    def suggest(self, request_id: int, token_ids: Sequence[int] | Int32) -> bool:
        """What it guesses. As force(), but taken to be right as often as it was."""
    def note_model(self, num_requests: int, num_tokens: int, seconds: float) -> None:
        """What it took for num_tokens tokens of each of num_requests."""
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
        """event: an AdvisoryEvent. Returns is_known, num_tokens, tokens per tier, a SessionAction, seconds left of the
        lease."""
    def remember_session(
        self, session_id: str, token_ids: Sequence[int] | Int32, *, tenant: str = "", cache_salt: str = ""
    ) -> bool:
        """A session of an earlier life, and the tokens of its last request there. False, and nothing changes, if it is
        known already, has no id, or no request here could have computed these tokens."""
    # Peers, by numbers from 0 to MAX_PEERS - 1 that the caller gives. All raise ValueError without a host tier.
    def note_on_peer(self, keys: UInt64, peer: int) -> None:
        """keys: [num_blocks, 2], in the order of their prompt. The peer can give these blocks."""
    def forget_peer(self, peer: int) -> None:
        """The number stands for nobody, or for somebody else, from now on."""
    def note_peer_rate(self, peer: int, bytes_per_second: float) -> None:
        """At which it gave blocks."""
    def lend(self, keys: UInt64) -> Int32:
        """Host slots of the blocks, -1 where the host has none. What is lent stays there until take_back()."""
    def take_back(self, keys: UInt64) -> None:
        """keys: of blocks that were lent."""
    def has_in_tiers(self, keys: UInt64) -> npt.NDArray[np.bool_]:
        """Which of the blocks are on the host or the disk."""
    def adopt_session(
        self, session_id: str, token_ids: Sequence[int] | Int32, *, tenant: str = "", cache_salt: str = ""
    ) -> bool:
        """As remember_session(), but what a peer knows of the session takes the place of what is known here."""
    def pull_session(self, session_id: str, *, tenant: str = "", cache_salt: str = "") -> int:
        """Brings what is known to be elsewhere of the session to the host. Returns how many blocks are under way."""
    def recent_sessions(self, max_num_sessions: int) -> list[tuple[str, str, str]]:
        """(tenant, salt, id), tenant by tenant, the most recently used first."""
    def session_tokens(self, session_id: str, *, tenant: str = "", cache_salt: str = "") -> Int32:
        """A copy of what the session's last request has computed; empty if it is unknown, or none has ended."""
    def stats(self) -> dict[str, Any]:
        """num_running, num_waiting (lists per class), num_units, num_free_units, num_cached_units,
        num_kind_tokens and num_kind_units (lists per CacheKind), num_uncached_tokens, num_conversions (hidden to K and
        V, K and V to uncached, back, K and V to int8), num_ratio_steps (list per RatioReason), max_running (None:
        everybody), uncached_ratio,
        num_steps, num_prompt_tokens, num_output_tokens, num_cached_prompt_tokens, num_queried_prompt_tokens,
        num_preemptions, num_evicted_blocks, num_preempted and class_seconds (lists per RequestClass),
        offline_only_seconds, num_finished (list per FinishReason), step_time_error_ratio, promised_itl_seconds,
        reader_margin, and of tiers and sessions:
        cpp/core/state/scheduler_stats.h."""
    def latency(self) -> dict[str, Any]:
        """model (LatencyModel), mean_relative_error, num_held_out, num_observed:
        cpp/core/estimates/latency_refiner.h."""
    def check_invariants(self) -> None:
        """Raises CoreError on the first broken one."""
    def reset_prefix_cache(self) -> int:
        """Drops every cached block that nobody runs; returns how many."""

class Advisor:
    """Policies for an engine that keeps its own memory (cpp/core/advisor/advisor.h). Not thread-safe.

    Requests are named by slots; compose(), note_scheduled() and commit() of several steps may overlap, in order.
    """

    def __init__(self, config: SchedulerConfig, estimates: Estimates | None = None) -> None:
        """Raises ValueError naming the bad field, or what such an engine cannot do."""
    def add_request(
        self,
        prompt_token_ids: Sequence[int] | Int32,
        *,
        max_tokens: int,
        request_class: int = 0,
        priority: int = 0,
        arrival_time: float = 0.0,
        ttft_target: float | None = None,
        itl_target: float | None = None,
        tpot_target: float | None = None,
        cache_salt: str = "",
        tenant: str = "",
        num_prior_tokens: int = 0,
        last_token_time: float = 0.0,
    ) -> int:
        """The slot of a request that waits. Raises ValueError for one that could never be served."""
    def accepts(
        self, prompt_token_ids: Sequence[int] | Int32, num_cached: int, request_class: int = 0, tenant: str = ""
    ) -> bool:
        """Whether its first token can come within max_ttft_ms. Nothing is added."""
    def retry_seconds(self) -> float:
        """Until one like the last that was not accepted would be, as it seems now."""
    def set_cached(self, slot: int, num_tokens: int) -> None:
        """Of a waiting request: its first tokens that the engine's cache has."""
    def remove(self, slot: int, is_complete: bool) -> None:
        """It has ended; of itself, so that its length is learnt from, or not."""
    def compose(
        self, now: float, running: Int32, num_computed: Int32, num_free_blocks: int
    ) -> tuple[int, int, Int32, Int32, Int32, Int32, Int32]:
        """Tokens of the step and requests that have some; slots that are put out, that may come in; those that may not
        have all that they have left, admitted ones among them, and how many tokens they may; all that run on, who
        gives way last first, or none if there is memory for everybody. Copies."""
    def compose_known(
        self, now: float, num_running: int, num_free_blocks: int
    ) -> tuple[int, int, Int32, Int32, Int32, Int32, Int32] | None:
        """The same where nothing has come between but steps that were noted. None: that is not so, by the number."""
    def note_scheduled(self, now: float, slots: Int32, num_tokens: Int32, num_computed: Int32) -> None:
        """What the engine's step has: tokens, and those computed before it."""
    def note_advised(self, now: float, admitted: Int32, num_found: Int32) -> None:
        """The step is the last advice, token for token; who came in, and tokens that were found cached."""
    def note_preempted(self, slots: Int32) -> None:
        """The engine has put these out."""
    def commit(self, now: float, slots: Int32, num_sampled: Int32) -> None:
        """The oldest step that was noted has ended. Raises CoreError if there is none."""
    def commit_expected(self, now: float, num_outputs: int) -> bool:
        """The same with one token for each request that the step brought to its end. False, and nothing is changed, if
        those that still live are not so many."""
    def running(self) -> dict[int, int]:
        """Who runs by the last compose(), and tokens computed of each."""
    def stats(self) -> dict[str, Any]:
        """num_running, num_waiting, num_preempted, class_seconds (lists per RequestClass), num_steps,
        offline_only_seconds, predicted_ttft_seconds, step_time_error_ratio."""
    def check_invariants(self) -> None:
        """Raises CoreError on the first broken one."""

class KeyChain:
    """Names the blocks of a text that grows (cpp/core/base/block_key.h)."""

    def __init__(self, fingerprint: str, salt: str, block_size: int) -> None: ...
    def append(self, token_ids: Sequence[int] | Int32) -> list[bytes]:
        """Keys of the complete blocks that come next. Raises ValueError if the last one is not complete."""

class TierIndex:
    """Which blocks the host and the disk have (cpp/core/tiers/tier_index.h), for an engine that moves them itself.

    Blocks are named by their keys, 16 bytes. Raises ValueError for a block that is not where it would have to be.
    """

    def __init__(self, num_host_slots: int) -> None: ...
    def take_slot(self, key: bytes) -> int | None:
        """The block is arriving at that slot, where another may have been dropped; None: all are in use."""
    def arrive(self, key: bytes) -> None: ...
    def fail_arrival(self, key: bytes) -> None: ...
    def begin_read(self, key: bytes) -> None:
        """It may not be dropped until as many end_read()."""
    def end_read(self, key: bytes) -> None: ...
    def touch(self, key: bytes) -> None:
        """It counts as just used, if it is on the host."""
    def host_slot(self, key: bytes) -> int | None:
        """None: it is not there, or still arriving."""
    def is_arriving(self, key: bytes) -> bool: ...
    def is_on_disk(self, key: bytes) -> bool: ...
    def set_on_disk(self, key: bytes) -> None: ...
    def clear_on_disk(self, key: bytes) -> None: ...
    def queue_write(self, key: bytes) -> None: ...
    def take_unwritten(self) -> bytes | None:
        """The oldest on the host that waits to be written to disk, taken out of the queue."""
    def has_unwritten(self) -> bool: ...
    @property
    def num_slots(self) -> int: ...
    @property
    def num_free_slots(self) -> int: ...
    def check_invariants(self) -> None:
        """Raises CoreError on the first broken one."""
