"""The engine's configuration: frozen, validated once, one line of meaning per field."""

from __future__ import annotations

import msgspec

POLICIES = ("fcfs", "priority", "apt", "bs", "bs_e", "bs_es", "echo", "ellm", "hocket")
DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS = ("int8",)
CACHE_KINDS = ("kv", "auto", "hidden")

_KIND_POLICIES = {"kv": POLICIES, "auto": ("apt", "hocket"), "hidden": ("fcfs",)}  # that decide so
_PARTIAL_POLICIES = ("ellm", "hocket")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything an engine process needs to start. Sent to it as JSON."""

    # Behaviour
    model: str  # directory in Hugging Face format
    served_model_name: str = ""  # name in responses; empty: the directory's name
    dtype: str = "auto"  # weights and cache; auto: the checkpoint's
    quantization: str | None = None  # int8: weights of products in half the bytes of bfloat16, on CPU; None: as dtype
    device: str = "auto"  # cpu, cuda, cuda:N; auto: cuda if there is one
    max_model_len: int | None = None  # tokens; None: the checkpoint's limit, or what fits the cache
    policy: str = "hocket"
    max_wait_ms: float = 60_000  # without a token; then an online request is served before all others
    max_offline_step_ms: float = 250  # to which offline work may stretch a step: whoever arrives waits for its end
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    cache_kinds: str = (
        "kv"  # K and V; auto: hidden states too, where the scheduler expects to gain; hidden: these alone
    )
    partial_caching: bool = False  # recompute some tokens in every step instead of caching them, where that pays
    restore: str = "faster"  # from host and disk tier: where that is predicted to beat computing, or always
    overlap_restores: bool = True  # a step begins while the host's blocks for it land; false: after they have landed
    seed: int = 0  # for requests without one
    decision_record: str | None = None  # new file for the scheduler's calls (schedcore/decision_record.py); None: none

    # Performance
    block_size: int = 16  # tokens per block; larger: less metadata, coarser prefix reuse
    layers_per_unit: int = 4  # F; the number of layers gives the classical layout
    max_num_seqs: int = 256  # requests in one step
    max_num_batched_tokens: int = 2048  # tokens in one step; larger: better prefill throughput, longer ITL
    max_num_waiting: int = 4096  # requests queued in the engine before it refuses
    cache_memory_bytes: int | None = None  # device pool; None: a share of free memory
    host_cache_bytes: int = 0  # host tier: what was computed, for when the device has not got it; 0: none
    disk_cache_dir: str | None = None  # disk tier: a folder of this engine's own; needs host_cache_bytes; None: none
    disk_cache_bytes: int = 16 << 30  # that the disk tier may take
    num_threads: int | None = None  # CPU kernels; None: all cores
    enforce_eager: bool = False  # on CUDA: no graphs of decode steps; a faster start, slower decodes
    max_cudagraph_capture_size: int = 256  # requests of the largest decode step that has a graph; more: more memory
    latency_profile: str | None = None  # file that hocket calibrate wrote: how long a step takes; None: unknown

    def __post_init__(self) -> None:
        _require(self.dtype in DTYPES, f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        is_known = self.quantization is None or self.quantization in QUANTIZATIONS
        _require(is_known, f"quantization must be {' or '.join(QUANTIZATIONS)}, not {self.quantization!r}")
        _require(self.policy in POLICIES, f"policy must be one of {', '.join(POLICIES)}, not {self.policy!r}")
        _require(self.restore in ("faster", "always"), f"restore must be faster or always, not {self.restore!r}")
        _require(1 <= self.block_size <= 256, "block_size must be between 1 and 256")
        for name in ("layers_per_unit", "max_num_seqs", "max_num_batched_tokens", "max_num_waiting"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1")
        _require(
            self.max_cudagraph_capture_size >= 1,
            "max_cudagraph_capture_size must be at least 1; enforce_eager does without graphs",
        )
        _require(self.max_wait_ms >= 0, "max_wait_ms must not be negative")
        _require(self.max_offline_step_ms > 0, "max_offline_step_ms must be above 0")
        _require(self.host_cache_bytes >= 0, "host_cache_bytes must not be negative")
        _require(self.disk_cache_bytes >= 1, "disk_cache_bytes must be at least 1")
        _require(
            self.disk_cache_dir is None or self.host_cache_bytes > 0,
            "disk_cache_dir needs host_cache_bytes: the way to the disk is by the host",
        )
        _require(
            self.host_cache_bytes == 0 or self.enable_prefix_caching or self.partial_caching,
            "host_cache_bytes needs enable_prefix_caching, where what comes back goes, or partial_caching",
        )
        _require(
            self.disk_cache_dir is None or self.enable_prefix_caching,
            "disk_cache_dir needs enable_prefix_caching: what comes back goes to the prefix cache",
        )
        for name in ("max_model_len", "cache_memory_bytes", "num_threads"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"{name} must be at least 1")
        self._check_forms()

    def _check_forms(self) -> None:
        kinds = self.cache_kinds
        _require(kinds in CACHE_KINDS, f"cache_kinds must be one of {', '.join(CACHE_KINDS)}, not {kinds!r}")
        deciding = _KIND_POLICIES[kinds]
        _require(
            self.policy in deciding, f"cache_kinds {kinds} needs policy {' or '.join(deciding)}, not {self.policy}"
        )
        if not self.partial_caching:
            return
        deciding = _PARTIAL_POLICIES
        _require(self.policy in deciding, f"partial_caching needs policy {' or '.join(deciding)}, not {self.policy}")
        _require(
            not self.enable_prefix_caching,
            "partial_caching needs enable_prefix_caching=false: a cached prefix is what it would recompute",
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
