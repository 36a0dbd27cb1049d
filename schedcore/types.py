"""What crosses between gateway and engine: inert, frozen values (seam 1).

Request ids are integers chosen by the submitting client, unique among its open requests; the HTTP id of a
response stays in the gateway. Token counts are in tokens, durations in milliseconds where the name says so.
"""

from __future__ import annotations

import enum

import msgspec


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


class ErrorCode(enum.StrEnum):
    """Machine-readable causes of FinishReason.ERROR."""

    QUEUE_FULL = "queue_full"
    TOO_LONG = "too_long"
    DUPLICATE_ID = "duplicate_id"
    INVALID = "invalid"
    ENGINE_DEAD = "engine_dead"
    INTERNAL = "internal"


class EngineError(msgspec.Struct, frozen=True, array_like=True):
    code: ErrorCode
    message: str


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the next token is chosen. Penalties follow OpenAI (frequency, presence) and Hugging Face (repetition)."""

    temperature: float = 1.0  # 0 means greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 means all
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None  # None: the engine draws one; equal seeds give equal tokens, whatever else is in the batch
    num_logprobs: int | None = None  # None: no logprobs; 0: of the sampled token only; n: and the n likeliest
    num_prompt_logprobs: int | None = None  # the same for the prompt's tokens (echo with logprobs)


class EngineRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sequence to generate. `n` choices are n requests that share a prompt."""

    request_id: int
    prompt_token_ids: list[int]
    max_tokens: int
    sampling: SamplingParams = SamplingParams()
    min_tokens: int = 0  # stop tokens cannot be sampled before this many output tokens
    stop_token_ids: list[int] = []  # end-of-sequence tokens included, unless ignored
    request_class: RequestClass = RequestClass.ONLINE
    priority: int = 0  # smaller runs earlier, within policy `priority`
    ttft_target_ms: float | None = None
    itl_target_ms: float | None = None
    age_ms: float = 0.0  # time the request has spent before it was submitted; arrival = receipt - age
    tenant: str = ""
    session_id: str = ""
    cache_salt: str = ""  # requests share cached prefixes only under equal salts


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities (natural) at one position: of the token itself, its rank, and of the likeliest alternatives."""

    token_id: int
    logprob: float
    rank: int  # 1 is the likeliest
    top: list[tuple[int, float]] = []  # descending


class TokenDelta(msgspec.Struct, frozen=True, array_like=True):
    """What one step added to one request. The last one of a request has finish_reason != NONE."""

    request_id: int
    token_ids: list[int]
    finish_reason: FinishReason = FinishReason.NONE
    stop_token_id: int | None = None  # the stop token that ended it; it is also the last of token_ids
    num_cached_tokens: int = 0  # prompt tokens served from the prefix cache; meaningful on the first delta
    logprobs: list[TokenLogprobs] | None = None  # one per token of token_ids, if asked for
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # on the first delta, if asked for; [0] is None
    error: EngineError | None = None


class AdvisoryEvent(enum.StrEnum):
    """What is known of a session. The first two announce a request."""

    TYPING = "typing"
    AGENT_STEP = "agent_step"
    CANCEL = "cancel"  # the announced request will not come: the lease ends, the session stays known
    QUERY = "query"  # changes nothing
    RELEASE = "release"  # the session is over: the engine forgets it


class Advisory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Notice about a session; answered by one SessionState. Sessions are known by tenant, salt and id together."""

    session_id: str
    event: AdvisoryEvent
    tenant: str = ""
    eta_ms: float | None = None  # the request comes no earlier than this; None: unknown
    lease_ms: float | None = None  # how long the cache is held for it; None: the engine's default
    request_id: int = 0  # names the answer; unique among the gateway's open advisories
    draft_token_ids: list[int] = []  # the prompt as far as it is known, without the generation prompt
    cache_salt: str = ""


class SessionAction(enum.StrEnum):
    """What an engine does about an advisory; the costliest of what it does."""

    NONE = "none"  # nothing to do, or the session is unknown
    PIN = "pin"  # all of its cache is in device memory and is held there
    PREFETCH = "prefetch"  # cache comes up from the host or the disk
    DRAFT_PREFILL = "draft_prefill"  # what is missing of the draft is computed
    RELEASE = "release"  # its lease ended, or the session is forgotten
    REFUSED = "refused"  # memory or the draft's length does not permit it


NUM_TIERS = 3  # device, host, disk


class SessionState(msgspec.Struct, frozen=True):
    """The answer to an advisory: where a session's cache is. A token counts at the fastest tier that has it."""

    request_id: int
    is_known: bool
    num_tokens: int = 0  # of the session's last request, prompt and output
    tier_tokens: list[int] = msgspec.field(default_factory=lambda: [0] * NUM_TIERS)  # device, host, disk
    tier_bytes: list[int] = msgspec.field(default_factory=lambda: [0] * NUM_TIERS)
    action: SessionAction = SessionAction.NONE
    lease_ms: float | None = None  # that remain; None: no lease


class EngineInfo(msgspec.Struct, frozen=True):
    """What an engine says of itself once, when it is ready."""

    model: str
    dtype: str
    device: str
    vocab_size: int
    max_model_len: int
    block_size: int
    num_units: int
    units_per_block: int  # units that one kv block takes over all layer groups
    max_num_seqs: int
    max_num_batched_tokens: int
    policy: str
    startup_seconds: float
    cudagraph_sizes: list[int] = []  # requests of decode steps that were recorded; smaller steps are padded to one


class EngineStats(msgspec.Struct, frozen=True):
    """A snapshot for metrics and admission. Counters grow monotonically from the engine's start."""

    num_running: list[int]  # per RequestClass
    num_waiting: list[int]  # per RequestClass
    num_waiting_tokens: int
    num_units: int
    num_free_units: int
    num_cached_units: int  # evictable
    num_steps: int
    num_prompt_tokens: int  # computed or served from the cache
    num_output_tokens: int
    num_cached_prompt_tokens: int
    num_queried_prompt_tokens: int
    num_preemptions: int
    num_evicted_blocks: int
    num_finished: list[int]  # per FinishReason
    step_seconds: float  # sum over steps, wall
    schedule_seconds: float  # sum over steps in the core's schedule()
    commit_seconds: float  # sum over steps in the core's commit()
    execute_seconds: float  # sum over steps in the executor
    num_preempted: list[int] = []  # of num_preemptions, per RequestClass
    class_seconds: list[float] = []  # of steps from schedule to commit, split by scheduled tokens, per RequestClass
    offline_only_seconds: float = 0.0  # of steps without online tokens: idle time put to use
    num_kind_tokens: list[int] = []  # on the device as K and V, as hidden states; what requests share counts once
    num_kind_units: list[int] = []  # of the blocks that hold them
    num_uncached_tokens: int = 0  # of running requests, recomputed in every step
    num_conversions: list[int] = []  # of running requests: hidden to K and V, K and V to uncached, back
    num_recomputed_tokens: int = 0  # uncached ones, through all layers, summed over steps
    num_loaded_tokens: int = 0  # the same through the first layers only: the host had the others
    step_time_error_ratio: float = 0.0  # predicted against measured, mean over recent held-out steps

    # Tiers
    num_hit_tokens: list[int] = []  # of num_cached_prompt_tokens: found on the device, the host, the disk
    num_restores: int = 0  # moves from a slower tier that a request waited for
    restore_seconds_saved: float = 0.0  # predicted, against computing the tokens again
    num_host_blocks: int = 0  # that the host tier has room for
    num_free_host_blocks: int = 0
    num_disk_blocks: int = 0
    disk_bytes: int = 0  # that the segments take
    max_disk_bytes: int = 0
    block_bytes: int = 0  # of one block in any tier
    num_saved_blocks: int = 0  # device to host
    num_stored_blocks: int = 0  # host to disk
    num_fetched_blocks: int = 0  # disk to host
    num_lost_blocks: int = 0  # that the disk should have had: damaged or dropped meanwhile
    num_loaded_blocks: int = 0  # host to device

    # Sessions
    num_sessions: int = 0  # known
    num_leases: int = 0  # announced, and not over
    num_announcements: int = 0
    num_announced_requests: int = 0  # that came while they were
    lead_seconds: float = 0.0  # from announcement to request, sum over those
    num_prepared_tokens: int = 0  # brought back or computed for announced requests
    num_wasted_tokens: int = 0  # of these, those whose announcement ended without a request
