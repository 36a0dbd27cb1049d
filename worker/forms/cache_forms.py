"""Which forms of cache the scheduler may use: what was asked for, and what the model's shapes allow.

The hidden kind stores X, the input of the attention projections, instead of K and V. Whole units are stored, so it
gains only where X fits one unit per layer group: a hidden size up to the size of K. The int8 kind stores K and V,
rounded, in one unit per layer group, and gains on every model.
"""

from __future__ import annotations

import logging
from typing import Any

from schedcore.api.config import EngineConfig
from worker.batch.paged_pool import NUM_VECTOR_KINDS
from worker.models.model_config import ModelConfig

MAX_GUESSED_TOKENS = 15  # more than it pays to guess anywhere; a block of memory more at most
logger = logging.getLogger(__name__)


def hidden_units(model: ModelConfig) -> int:
    """Of a hidden block, per layer group."""
    return -(-model.hidden_size // model.kv_size)


def hidden_ratio(model: ModelConfig) -> float:
    """Memory of hidden states over that of K and V, in whole units: eta of Apt-Serve."""
    return hidden_units(model) / NUM_VECTOR_KINDS


def form_settings(config: EngineConfig, model: ModelConfig) -> dict[str, Any]:
    """Fields of SchedulerConfig. Raises ValueError where hidden states are asked for and gain nothing."""
    if config.cache_kinds == "kv" and not config.partial_caching:
        return {}
    if config.speculation == "auto" and has_forms(config, model):
        logger.warning(
            "speculation: nothing is guessed beside partial caching and hidden states; leave out "
            "--partial-caching, or say --cache-kinds kv"
        )
    if has_int8_rows(config):
        return _int8_settings(config)
    return {**_kind_settings(config, model), "enable_partial_caching": config.partial_caching}


def has_int8_rows(config: EngineConfig) -> bool:
    """Whether single requests may be kept in int8, in a cache of another dtype."""
    return config.cache_kinds == "int8"


def has_forms(config: EngineConfig, model: ModelConfig) -> bool:
    """Whether some tokens' K and V may have to be made in every step: the pool then needs a workspace."""
    is_hidden_possible = config.cache_kinds in ("auto", "hidden") and hidden_ratio(model) < 1
    return is_hidden_possible or config.partial_caching


def max_guessed_tokens(config: EngineConfig, model: ModelConfig) -> int:
    """Of a request in one step: none where its cache may have another form than K and V."""
    return MAX_GUESSED_TOKENS if config.speculation == "auto" and not has_forms(config, model) else 0


def has_copies(config: EngineConfig) -> bool:
    """Whether uncached tokens may be loaded from the host: the pool then needs lanes for them."""
    return config.partial_caching and config.host_cache_bytes != 0


def _int8_settings(config: EngineConfig) -> dict[str, Any]:
    if config.policy == "fcfs":
        logger.info("cache kinds: every request in int8")
        return {"int8_units_per_group": 1, "cache_kind": "int8"}
    logger.info("cache kinds: K and V, and int8 for requests that would not find memory otherwise")
    return {"int8_units_per_group": 1}


def _kind_settings(config: EngineConfig, model: ModelConfig) -> dict[str, Any]:
    if config.cache_kinds == "kv":
        return {}
    ratio = hidden_ratio(model)
    takes = f"hidden states take {ratio:g} times the memory of K and V"
    if ratio >= 1:
        if config.cache_kinds == "hidden":
            raise ValueError(f"cache_kinds hidden gains nothing on this model: {takes}; use kv")
        logger.info("cache kinds: K and V only, since on this model %s", takes)
        return {}
    if config.cache_kinds == "hidden":
        logger.info("cache kinds: hidden states only; %s", takes)
        return {"hidden_units_per_group": hidden_units(model), "cache_kind": "hidden"}
    logger.info("cache kinds: K and V, and hidden states where the scheduler expects to gain; %s", takes)
    return {"hidden_units_per_group": hidden_units(model)}
