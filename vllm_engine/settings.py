"""Our configuration as vLLM's arguments; what of it means nothing there is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from schedcore.api.config import STARVING_TURN_MS, VLLM_POLICY, EngineConfig
from schedcore.api.scheduler_options import parse_scheduler_options
from schedcore.record.decision_record import check_new
from schedcore.tiers.session_files import PARTS_PER_BOOK
from vllm_engine.adapters import adapter_arguments

_OURS_ONLY = (  # settings that vLLM's engine has no place for
    "quantization",
    "kv_cache_dtype",
    "cache_kinds",
    "partial_caching",
    "speculation",
    "speculative_model",
    "num_threads",
)
HOST_BYTES = 4 << 30  # of the host tier beside a disk tier, where nobody says
TOKENIZER_FILE = "tokenizer.json"  # that grammars can be followed with
_DEFAULTS = EngineConfig(model="")


def refused_settings(config: EngineConfig) -> list[str]:
    """Names of settings that were given and cannot be honoured."""
    return [name for name in _OURS_ONLY if getattr(config, name) != getattr(_DEFAULTS, name)]


def engine_arguments(config: EngineConfig) -> dict[str, Any]:
    """Keyword arguments of vLLM's EngineArgs. Raises ValueError."""
    has_tokenizer = (Path(config.model) / TOKENIZER_FILE).is_file()
    if refused := refused_settings(config):
        raise ValueError(f"the vLLM engine has no {', '.join(refused)}")
    if config.decision_record is not None:
        if config.policy == VLLM_POLICY:
            raise ValueError(f"--scheduling-policy {VLLM_POLICY} decides nothing of ours: there is nothing to record")
        check_new(Path(config.decision_record))
    arguments: dict[str, Any] = {
        "model": config.model,
        "dtype": config.dtype,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "enable_prefix_caching": config.enable_prefix_caching,
        "enable_chunked_prefill": config.enable_chunked_prefill,
        "seed": config.seed,
        "enforce_eager": config.enforce_eager,
        "skip_tokenizer_init": not has_tokenizer,  # texts are the gateway's; grammars need it here
        "max_logprobs": -1,
        "disable_log_stats": True,
        "mm_processor_cache_gb": 0,  # else 4, twice; images that come again are prepared again
    }
    arguments |= adapter_arguments(config.adapters())
    if config.max_model_len is not None:
        arguments["max_model_len"] = config.max_model_len
    if config.block_size != _DEFAULTS.block_size:  # else as the platform prefers
        arguments["block_size"] = config.block_size
    if config.cache_memory_bytes is not None:
        arguments["kv_cache_memory_bytes"] = config.cache_memory_bytes
    if (tiers := tier_settings(config)) is not None:
        arguments["kv_transfer_config"] = tiers
    options = dict(map(_vllm_option, config.vllm_options))
    if tiers is not None and (others := options.keys() & {"kv_transfer_config", "kv_offloading_size"}):
        raise ValueError(f"host_cache_bytes and disk_cache_dir are tiers of ours, {', '.join(others)} vLLM's: not both")
    arguments |= options
    if all(arguments.get(name, 1) == 1 for name in ("tensor_parallel_size", "pipeline_parallel_size")):
        arguments.setdefault("distributed_executor_backend", "uni")  # the model in this process, too
    return arguments


def tier_settings(config: EngineConfig) -> dict[str, Any] | None:
    """Fields of vLLM's KVTransferConfig for our memory tiers; None: they were not asked for."""
    if not config.host_cache_bytes and config.disk_cache_dir is None:
        return None
    extra: dict[str, Any] = {"host_bytes": config.host_cache_bytes or HOST_BYTES}
    if config.disk_cache_dir is not None:
        share = config.disk_cache_bytes // PARTS_PER_BOOK  # the session book's
        extra |= {"disk_dir": config.disk_cache_dir, "disk_bytes": config.disk_cache_bytes - share}
    return {
        "kv_connector": "HocketConnector",
        "kv_connector_module_path": "vllm_engine.kv.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


def _vllm_option(option: str) -> tuple[str, Any]:
    """NAME=VALUE, the value JSON where it can be: an argument of vLLM's that we have no name for."""
    name, equals, text = option.partition("=")
    name = name.strip().lstrip("-").replace("-", "_")
    if not equals or not name.isidentifier():
        raise ValueError(f"vllm_option {option!r} is not NAME=VALUE")
    try:
        return name, json.loads(text)
    except ValueError:
        return name, text


def advisor_settings(config: EngineConfig) -> dict[str, Any]:
    """Fields of the core's SchedulerConfig that are not vLLM's to say."""
    return {
        "policy": config.policy,
        "max_wait_ms": config.max_wait_ms,
        "starving_turn_ms": STARVING_TURN_MS,
        "max_ttft_ms": config.max_ttft_ms or math.inf,
        "max_decode_step_ms": config.max_decode_step_ms or 0.0,
        "max_offline_step_ms": config.max_offline_step_ms or 0.0,
        # Last: what was asked for by name counts.
        **parse_scheduler_options(config.scheduler_options, enable_chunked_prefill=config.enable_chunked_prefill),
    }
