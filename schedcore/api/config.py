"""The engine's configuration: frozen, validated once, every setting declared where its field is.

A comment says what `--help` leaves out. Defaults are those of the flags, too.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec

from schedcore._core import POLICIES as POLICIES
from schedcore.api.scheduler_options import parse_scheduler_options
from schedcore.api.setting import POSITIVE, Flag, OneOf, Range, check

DTYPES = ("auto", "float32", "bfloat16", "float16")
DTYPE_ALIASES = (("half", "float16"), ("float", "float32"))
QUANTIZATIONS = ("int8", "int4", "int8-weights")
KV_CACHE_DTYPES = ("auto", "bfloat16", "int8")
SPECULATIONS = ("auto", "off")
CACHE_KINDS = ("kv", "auto", "hidden", "int8")
STARVING_TURN_MS = 2000.0  # that who had waited for long is served while others have waited as long
VLLM_POLICY = "vllm"  # of the vLLM engine: its scheduler is left as it is

_KIND_POLICIES = {  # that decide so
    "kv": (*POLICIES, VLLM_POLICY),
    "auto": ("apt", "hocket"),
    "hidden": ("fcfs",),
    "int8": ("apt", "hocket", "fcfs"),
}
_PARTIAL_POLICIES = ("ellm", "hocket")


_model = partial(Flag, "model")
_engine = partial(Flag, "engine")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything an engine process needs to start. Sent to it as JSON."""

    model: str  # directory in Hugging Face format
    served_model_name: str = ""  # name in responses; empty: the directory's name

    # The model
    dtype: Annotated[
        str, _model("of weights and cache (default: {default}, the checkpoint's)"), OneOf(DTYPES, DTYPE_ALIASES)
    ] = "auto"
    quantization: Annotated[  # of products: weights in half the bytes of bfloat16; None: as dtype
        str | None,
        _model(
            "on CPU: int8 and int4 multiply weights of as many bits and activations as integers, int8-weights rounds "
            "weights only; less exact and faster (default: off)"
        ),
        OneOf(QUANTIZATIONS),
    ] = None
    kv_cache_dtype: Annotated[
        str,
        _model(
            "of the cache; int8, on CPU: half of bfloat16, a scale per token and head (default: {default}, that of the "
            "weights)"
        ),
        OneOf(KV_CACHE_DTYPES),
    ] = "auto"
    lora_modules: Annotated[  # adapters() reads it
        tuple[str, ...],
        _model(
            "with --engine vllm, a LoRA adapter's name, which a request may give as its model, and its folder; "
            "repeatable",
            "NAME=PATH",
        ),
    ] = ()
    max_model_len: Annotated[  # None: the checkpoint's limit, or what fits the cache
        int | None, _model("context length in tokens", "N"), Range(1)
    ] = None

    # The engine
    device: Annotated[str, _engine("cpu, cuda or cuda:N (default: {default}, cuda if there is one)")] = "auto"
    policy: Annotated[
        str,
        _engine(
            "who runs first; vllm: that engine's own scheduler (default: {default})",
            name="scheduling-policy",
        ),
        OneOf((*POLICIES, VLLM_POLICY)),
    ] = "hocket"
    vllm_options: Annotated[  # vllm_engine/settings.py
        tuple[str, ...],
        _engine(
            "with --engine vllm, an argument of its EngineArgs, such as tensor_parallel_size=2; repeatable",
            "NAME=VALUE",
            "vllm-option",
        ),
    ] = ()
    max_wait_ms: Annotated[
        float, _engine("without a token; then an online request goes first (default: {default})", "MS"), Range(0)
    ] = 20_000
    max_ttft_ms: Annotated[  # what is predicted: cpp/core/requests/overload_control.h
        float,
        _engine(
            "an online request whose first token is predicted to come later is refused with 429 and a Retry-After; 0: "
            "nobody is (default: {default}, or 0.8 x --ttft-target-ms, at least 1000)",
            "MS",
        ),
        Range(0),
    ] = 120_000
    max_decode_step_ms: Annotated[  # None: derived from the latency model, step by step
        float | None,
        _engine(
            "to which prompts may stretch a step in which others decode without a deadline; shorter: smaller gaps "
            "between tokens, later first tokens (default: twice the time of a usual decode step, up to eight times "
            "that where first tokens have waited)",
            "MS",
        ),
        POSITIVE,
    ] = None
    max_offline_step_ms: Annotated[  # None: derived from the latency model, step by step
        float | None,
        _engine(
            "to which offline work may stretch a step; whoever arrives waits for its end (default: the time of a usual "
            "decode step, between 50 and 100, or 100 where nobody is online; a quarter of --ttft-target-ms at most)",
            "MS",
        ),
        POSITIVE,
    ] = None
    scheduler_options: Annotated[  # schedcore/api/scheduler_options.py
        tuple[str, ...],
        _engine(
            "switch a part of the policy off or change what it weighs, such as enable_plan_search=false; may be given "
            "several times (docs/scheduling.md lists them)",
            "NAME=VALUE",
            "scheduler-option",
        ),
    ] = ()
    max_num_seqs: Annotated[int, _engine("requests in one step (default: {default})", "N"), Range(1)] = 256
    max_num_batched_tokens: Annotated[  # larger: better prefill throughput
        int, _engine("tokens in one step; fewer: shorter gaps between tokens (default: {default})", "N"), Range(1)
    ] = 2048
    speculation: Annotated[  # cpp/core/speculation/speculation.h
        str,
        _engine(
            "auto: where a request's text repeats itself or its tenant's earlier answers, or its grammar leaves no "
            "choice, its next tokens are computed in one step, as many as pay; answers stay the same (default: "
            "{default})"
        ),
        OneOf(SPECULATIONS),
    ] = "off"
    speculative_model: Annotated[  # cpp/core/speculation/model_guesses.h
        str | None,
        _engine(
            "a small model of the same vocabulary that guesses next tokens, as many as pay, with --speculation auto; "
            "answers stay the same (default: none)",
            "DIR",
        ),
    ] = None
    max_num_waiting: Annotated[int, Range(1)] = 4096  # requests queued in the engine before it refuses
    cache_memory_bytes: Annotated[  # device pool; None: a share of free memory
        int | None, _engine("such as 2G (default: from free memory)", "SIZE", "kv-cache-memory-bytes"), Range(1)
    ] = None
    gpu_memory_utilization: Annotated[  # None: most of what is free
        float | None,
        _engine(
            "on CUDA: share of the device's memory that weights, cache and whatever else is on it take together "
            "(default: 0.9 of what is free goes to the cache)",
            "SHARE",
        ),
        Range(0.01, 1),
    ] = None
    cache_kinds: Annotated[  # auto, int8: hidden states, or int8, where the scheduler expects to gain
        str,
        _engine(
            "auto: where memory is short, requests may be kept as hidden states, half of K and V on models with as "
            "many KV heads as heads, and projected in every step; hidden: all are, under policy fcfs; int8: where "
            "memory is short, requests may be rounded to half of K and V, on every model, on CPU; their answers may "
            "then differ a little (default: {default})"
        ),
        OneOf(CACHE_KINDS),
    ] = "kv"
    partial_caching: Annotated[
        bool,
        _engine(
            "where memory is short and computing is not, the first tokens of requests may be recomputed in every step "
            "instead of being cached, or loaded from the host where that keeps them (--host-cache-bytes); never those "
            "that others share or are expected to (default: {default})"
        ),
    ] = False
    host_cache_bytes: Annotated[  # None: a share of what is free (worker/process/host_size.py)
        int | None,
        _engine(
            "host memory that keeps what was computed when the cache has dropped it, such as 8G; 0: none (default: "
            "what sessions have computed, in an eighth of what is free, 4G at most and on CPU a quarter of the cache)",
            "SIZE",
        ),
        Range(0),
    ] = None
    disk_cache_dir: Annotated[
        str | None,
        _engine("folder that keeps it over restarts; one engine's own (default: none)", "DIR"),
    ] = None
    disk_cache_bytes: Annotated[int, _engine("that it may take on disk (default: {default})", "SIZE"), Range(1)] = (
        16 << 30
    )
    restore: Annotated[  # from host and disk tier: where that is predicted to beat computing, or always
        str, OneOf(("faster", "always"))
    ] = "faster"
    overlap_restores: bool = True  # a step begins while the host's blocks for it land; false: after they have landed
    block_size: Annotated[  # larger: less metadata, coarser prefix reuse
        int, _engine("tokens per block (default: {default})", "N"), Range(1, 256)
    ] = 16
    layers_per_unit: Annotated[  # F; the number of layers gives the classical layout
        int, _engine("layers per unit of memory (default: {default})", "N"), Range(1)
    ] = 4
    enable_prefix_caching: Annotated[bool, _engine("default: {default}")] = True
    enable_chunked_prefill: Annotated[bool, _engine("default: {default}")] = True
    seed: Annotated[int, _engine("of requests without one (default: {default})", "N")] = 0
    num_threads: Annotated[int | None, _engine("of CPU kernels (default: all cores)", "N"), Range(1)] = None
    enforce_eager: Annotated[
        bool,
        _engine(
            "on CUDA: launch every kernel of every step instead of replaying recorded steps; a faster start, slower "
            "steps (default: {default})"
        ),
    ] = False
    max_cudagraph_capture_size: Annotated[  # larger: more memory
        int,
        _engine(
            "on CUDA: tokens of the largest step that is recorded; larger ones are launched kernel by kernel (default: "
            "{default}, at most --max-num-batched-tokens)",
            "N",
        ),
        Range(1, hint="; enforce_eager does without graphs"),
    ] = 512
    latency_profile: Annotated[
        str | None,
        _engine("how long a step takes on this machine, as hocket calibrate wrote it (default: unknown)", "FILE"),
    ] = None
    decision_record: Annotated[  # schedcore/record/decision_record.py
        str | None,
        _engine(
            "write what the scheduler is told, prompts as token ids, to a new file for hocket simulate --replay", "FILE"
        ),
    ] = None

    def __post_init__(self) -> None:
        check(self)
        parse_scheduler_options(self.scheduler_options, enable_chunked_prefill=self.enable_chunked_prefill)
        _require(
            self.disk_cache_dir is None or self.host_cache_bytes != 0,
            "disk_cache_dir needs host_cache_bytes, not 0: the way to the disk is by the host",
        )
        _require(
            not self.host_cache_bytes or self.enable_prefix_caching or self.partial_caching,
            "host_cache_bytes needs enable_prefix_caching, where what comes back goes, or partial_caching",
        )
        _require(
            self.disk_cache_dir is None or self.enable_prefix_caching,
            "disk_cache_dir needs enable_prefix_caching: what comes back goes to the prefix cache",
        )
        _require(
            self.speculative_model is None or self.speculation == "auto",
            "speculative_model needs speculation auto, which decides when it guesses",
        )
        self._check_forms()
        self.adapters()

    def adapters(self) -> dict[str, str]:
        """Folders by name. Raises ValueError."""
        pairs = [module.partition("=")[::2] for module in self.lora_modules]
        _require(all(name and path for name, path in pairs), "lora_modules are written NAME=PATH")
        _require(len(dict(pairs)) == len(pairs), "two of lora_modules have the same name")
        return dict(pairs)

    def _check_forms(self) -> None:
        kinds = self.cache_kinds
        if self.kv_cache_dtype == "int8":
            _require(kinds == "kv", f"kv_cache_dtype int8 keeps K and V only: cache_kinds must be kv, not {kinds}")
            _require(not self.partial_caching, "kv_cache_dtype int8 keeps every token: partial_caching must be off")
        if kinds == "int8":
            _require(not self.partial_caching, "cache_kinds int8 keeps every token: partial_caching must be off")
        deciding = _KIND_POLICIES[kinds]
        _require(
            self.policy in deciding, f"cache_kinds {kinds} needs policy {' or '.join(deciding)}, not {self.policy}"
        )
        if not self.partial_caching:
            return
        deciding = _PARTIAL_POLICIES
        _require(self.policy in deciding, f"partial_caching needs policy {' or '.join(deciding)}, not {self.policy}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
