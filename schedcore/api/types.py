"""What crosses between gateway and engine: inert, frozen values (seam 1).

Request ids are integers chosen by the submitting client, unique among its open requests; the HTTP id of a
response stays in the gateway. Token counts are in tokens, durations in milliseconds where the name says so.
"""

from __future__ import annotations

import enum

import msgspec

from schedcore._core import AdvisoryEvent as AdvisoryEvent
from schedcore._core import FinishReason as FinishReason
from schedcore._core import RequestClass as RequestClass
from schedcore._core import SessionAction as SessionAction


class ErrorCode(enum.StrEnum):
    """Machine-readable causes of FinishReason.ERROR."""

    QUEUE_FULL = "queue_full"
    OVERLOADED = "overloaded"  # the first token would come later than the engine promises
    TOO_LONG = "too_long"
    DUPLICATE_ID = "duplicate_id"
    INVALID = "invalid"
    ENGINE_DEAD = "engine_dead"
    ENGINE_HUNG = "engine_hung"  # it was killed for its silence
    MOVED = "moved"  # its node is drained: it is to go on at another one
    POISON = "poison"  # engines died whenever they computed the request
    NOT_FINITE = "not_finite"  # what the model computed for the request is NaN or infinite
    INTERNAL = "internal"


class EngineError(msgspec.Struct, frozen=True, array_like=True):
    code: ErrorCode
    message: str
    retry_seconds: float = 1.0  # of a request that may be tried again later


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
    logprob_token_ids: list[int] = []  # with num_logprobs: these, in place of the likeliest
    allowed_token_ids: list[int] | None = None  # None: all; no other can be sampled
    bad_words: list[list[int]] = []  # sequences of tokens that no output has in it


class Targets(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a request is to see, in milliseconds; None: it does not say. Attainment: docs/metrics.md."""

    ttft_ms: float | None = None  # from arrival to the first token
    itl_ms: float | None = None  # between any two tokens
    tpot_ms: float | None = None  # per token after the first, all of them together: who ran ahead may pause

    def over(self, others: Targets) -> Targets:
        """Each by itself: this one, or where there is none the other's."""
        return Targets(
            others.ttft_ms if self.ttft_ms is None else self.ttft_ms,
            others.itl_ms if self.itl_ms is None else self.itl_ms,
            others.tpot_ms if self.tpot_ms is None else self.tpot_ms,
        )


class GrammarKind(enum.StrEnum):
    JSON_SCHEMA = "json_schema"  # the schema, as JSON
    REGEX = "regex"
    CHOICE = "choice"  # a JSON list of strings
    EBNF = "ebnf"  # "root ::= ...", as llama.cpp and xgrammar read it
    LARK = "lark"  # as llguidance reads it; may hold JSON schemas (%json)


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """What the whole output has to be, said so that any engine of grammars can read it. Hashable."""

    kind: GrammarKind
    text: str
    before: str = ""  # what comes first: rules in Lark, `first` among them; empty: nothing
    has_space: bool = True  # of a JSON schema: whether there may be whitespace between JSON's tokens


class PoolingKind(enum.StrEnum):
    """Which of a prompt's final hidden states make its vector."""

    LAST = "last"
    MEAN = "mean"
    CLS = "cls"  # of the first token


class Pooling(msgspec.Struct, frozen=True, array_like=True):
    kind: PoolingKind
    is_normalized: bool = False  # to length 1
    num_dimensions: int | None = None  # the first ones; None: all


class ImageLimits(msgspec.Struct, frozen=True):
    """What images an engine takes with a request."""

    max_images: int
    max_image_bytes: int  # encoded
    max_pixels: int  # of one


class PeerSource(msgspec.Struct, frozen=True, array_like=True):
    """Another engine that has cached blocks, and gives them: docs/fleet.md."""

    endpoint: str  # tcp://host:port of its block server
    incarnation: str


class EngineRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sequence to generate. `n` choices are n requests that share a prompt."""

    request_id: int
    prompt_token_ids: list[int]
    max_tokens: int  # to come
    sampling: SamplingParams = SamplingParams()
    min_tokens: int = 0  # stop tokens cannot be sampled before this many output tokens, prior ones included
    stop_token_ids: list[int] = []  # end-of-sequence tokens included, unless ignored
    request_class: RequestClass = RequestClass.ONLINE
    priority: int = 0  # smaller runs earlier (docs/scheduling.md)
    targets: Targets = Targets()
    age_ms: float = 0.0  # time the request has spent before it was submitted; arrival = receipt - age
    tenant: str = ""
    session_id: str = ""
    cache_salt: str = ""  # requests share cached prefixes only under equal salts
    adapter: str = ""  # that is put over the model, by name; requests share cached prefixes only under equal ones
    pooling: Pooling | None = None  # the prompt's vector is wanted, and no token; max_tokens is 1 then
    images: list[bytes] = []  # encoded, in the order of their tokens: the prompt has one for each, the engine more
    grammar: Grammar | None = None  # with one, stop tokens come where it may end; its end comes before min_tokens
    # Of a request that goes on where another engine's ended: with its seed, the rest is what that one would have said.
    num_prior_tokens: int = 0  # the prompt's last ones, that are output already
    pause_ms: float = 0.0  # since the last of them was there, when this was submitted
    source: PeerSource | None = None  # that may have its prompt's blocks: a hint


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
    vector: bytes | None = None  # float32, little-endian; the token beside it means nothing
    num_prompt_tokens: int | None = None  # on the first delta, where images made the prompt longer than it came


DEFAULT_LEASE_MS = 30_000.0  # beyond the earliest time at which the request may come


class Advisory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Notice about a session; answered by one SessionState. Sessions are known by tenant, salt and id together."""

    session_id: str
    event: AdvisoryEvent
    tenant: str = ""
    lease_ms: float | None = None  # how long the cache is held for it; None: the engine's default
    request_id: int = 0  # names the answer; unique among the gateway's open advisories
    draft_token_ids: list[int] = []  # the prompt as far as it is known, without the generation prompt
    cache_salt: str = ""
    source: PeerSource | None = None  # that knows the session; its cache is to come from there


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


class CacheReset(msgspec.Struct, frozen=True):
    """The answer to a reset of the prefix cache."""

    request_id: int  # of whoever asked
    num_blocks: int | None  # that were dropped; None: none, because this engine would find them again in other memory


# Of EngineInfo.missing
ADVISORIES = "advisories"
ALLOWED_TOKENS = "allowed_token_ids"
BAD_WORDS = "bad_words"
LOGPROB_TOKENS = "logprob_token_ids"
CACHE_RESET = "reset_prefix_cache"
PROMPT_LOGPROBS = "log-probabilities of the prompt"
LARK_GRAMMARS = "grammars in LARK"  # forced calls of tools, and answers behind thinking, are written in it
POOLING = "embeddings"
GENERATION = "generation"  # the model has no head for tokens
RESUMPTION = "num_prior_tokens"  # then a stream ends with its engine


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
    # To which prompts stretch a step in which others decode, as told or as a latency profile has it. 0: to twice the
    # time of its decodes, of which nothing has been measured yet. None: they may take whole steps.
    max_decode_step_ms: float | None = None
    is_step_bound_derived: bool = False  # it grows where first tokens have waited (cpp/core/estimates/estimates.h)
    max_ttft_ms: float | None = None  # online requests whose first token is predicted to come later are refused
    host_cache_bytes: int = 0  # of the host tier; 0: there is none
    host_keeps_sessions_only: bool = False  # what requests without a session have computed does not go there
    block_bytes: int = 0  # of one block in any tier
    restore_bytes_per_second: float = 0.0  # from the host to the device; 0: there is no host tier
    cudagraph_sizes: list[int] = []  # tokens of steps that were recorded; smaller steps are padded to one
    has_grammars: bool = False  # takes requests with a grammar
    images: ImageLimits | None = None  # None: takes no requests with images
    latency_form: str = ""  # of the step times that it starts from, and their coefficients (schedcore/latency)
    latency_coefficients: dict[str, float] = {}
    missing: list[str] = []  # of what an engine may do, what this one does not: the gateway refuses it by that name


class ServerStats(msgspec.Struct, frozen=True):
    """Of a server that somebody else runs, at this moment."""

    url: str
    is_usable: bool
    num_open: list[int]  # requests there, per RequestClass
    offline_window: int  # offline requests that it would be given


class NodeStats(msgspec.Struct, frozen=True):
    """Of a node of a fleet, at this moment, as one gateway sees it."""

    name: str
    condition: str  # gateway/fleet/node.py
    num_open: int  # requests of this gateway there


class EngineStats(msgspec.Struct, frozen=True):
    """A snapshot for metrics and admission. Counters grow monotonically from the engine's start."""

    num_running: list[int]  # per RequestClass
    num_waiting: list[int]  # per RequestClass
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
    num_kind_tokens: list[int] = []  # on the device, per CacheKind; what requests share counts once
    num_kind_units: list[int] = []  # of the blocks that hold them
    num_uncached_tokens: int = 0  # of running requests, recomputed in every step
    num_conversions: list[int] = []  # of running requests, per Conversion of scheduler_stats.h
    num_ratio_steps: list[int] = []  # steps by what the b/r solver said in them, per RatioReason
    max_running: int | None = None  # b, of the last step: online requests for all to keep their targets; None: no limit
    uncached_ratio: float = 0.0  # r, of the last step
    num_recomputed_tokens: int = 0  # uncached ones, through all layers, summed over steps
    num_loaded_tokens: int = 0  # the same through the first layers only: the host had the others
    num_guessed_tokens: int = 0  # computed before anybody knew that they come
    num_right_guesses: int = 0  # of these, those that came
    guess_seconds: float = 0.0  # sum over questions to a small model (worker/speculation/)
    predicted_ttft_seconds: float = 0.0  # of an online request that came now, with a short prompt
    promised_itl_seconds: float = 0.0  # to who reads along without a target; 0: nothing is known of step times
    reader_margin: float = 0.0  # by which steps beside them are planned shorter than that
    step_time_error_ratio: float = 0.0  # predicted against measured, mean over recent held-out steps

    # Servers that somebody else runs
    servers: list[ServerStats] = []
    num_retries: int = 0  # requests that went to another one, since the first took none of it

    # Nodes of a fleet
    nodes: list[NodeStats] = []
    num_routed: dict[str, int] = {}  # requests of this gateway by why they went where they went: RouteReason
    num_desired_nodes: int | None = None  # that the gateway's online requests need; None: nobody says what is enough
    num_stale_incarnations: int = 0  # messages that were dropped, since they were of an engine or node that is over

    # Tiers
    num_hit_tokens: list[int] = []  # of num_cached_prompt_tokens: on the device, the host, the disk or another node
    num_restores: int = 0  # moves from a slower tier that a request waited for
    restore_seconds_saved: float = 0.0  # predicted, against computing the tokens again
    num_host_blocks: int = 0  # that the host tier has room for
    num_free_host_blocks: int = 0
    disk_bytes: int = 0  # that the segments take
    max_disk_bytes: int = 0
    block_bytes: int = 0  # of one block in any tier
    num_saved_blocks: int = 0  # device to host
    num_stored_blocks: int = 0  # host to disk
    num_fetched_blocks: int = 0  # disk to host
    num_lost_blocks: int = 0  # that the disk should have had: damaged or dropped meanwhile
    num_pulled_blocks: int = 0  # from other nodes' hosts
    num_unpulled_blocks: int = 0  # that another node should have given: damaged, dropped, or its engine died
    pull_seconds: float = 0.0  # that pulls took, summed over them
    num_given_blocks: int = 0  # to other nodes
    num_refused_peers: int = 0  # engines that wanted blocks, and were of another model, dtype or layout
    num_session_moves: dict[str, int] = {}  # sessions that were to come from another node, by what became of it
    num_loaded_blocks: int = 0  # host to device

    # Sessions
    num_sessions: int = 0  # known
    num_leases: int = 0  # announced, and not over
    num_announced_requests: int = 0  # that came while they were
    num_prepared_tokens: int = 0  # brought back or computed for announced requests
    num_wasted_tokens: int = 0  # of these, those whose announcement ended without a request
