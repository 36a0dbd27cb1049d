"""How a checkpoint rotates its queries and keys, normalised from both spellings of config.json.

Old: `rope_theta` beside `rope_scaling`. New (transformers 5): `rope_parameters` holds everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.base.errors import CheckpointError, UnsupportedModelError
from worker.models.config_fields import POSITIVE, check_field, is_number

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
DEFAULT_THETA = 10000.0
_POSITIVE_FIELDS = (
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
)


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Fields a type does not use keep their defaults."""

    rope_type: str = "default"
    theta: float = DEFAULT_THETA
    factor: float = 1.0
    original_max_positions: int = 0  # llama3, yarn: context length before scaling
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn: more rotations than this over the original context: not interpolated
    beta_slow: float = 1.0  # yarn: fewer than this: fully interpolated
    truncate: bool = True  # yarn: ramp ends rounded to whole dimensions
    attention_factor: float | None = None  # yarn: scales cosines and sines; None: from factor and the mscales
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn


def parse_rope(config: Mapping[str, Any]) -> RopeConfig:
    """Raises UnsupportedModelError for a type that is not in ROPE_TYPES, CheckpointError for a missing key."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise UnsupportedModelError("rope_parameters per layer type are not supported; one set for all layers is")
    for name in _POSITIVE_FIELDS:
        if parameters.get(name) is not None:
            check_field(parameters, name, POSITIVE)
    rope_type = parameters.get("rope_type") or parameters.get("type") or "default"
    if rope_type not in ROPE_TYPES:
        raise UnsupportedModelError(f"rope type {rope_type!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
    partial = _first(parameters, config, key="partial_rotary_factor", default=1.0)
    if partial != 1.0:
        raise UnsupportedModelError(f"partial_rotary_factor {partial} is not supported; only 1.0 is")
    theta = float(_first(parameters, config, key="rope_theta", default=DEFAULT_THETA))
    if rope_type == "default":
        return RopeConfig(theta=theta)
    if rope_type == "linear":
        return RopeConfig(rope_type, theta, _required(parameters, "factor"))
    return _parse_llama3(parameters, theta) if rope_type == "llama3" else _parse_yarn(parameters, config, theta)


def _parse_llama3(parameters: Mapping[str, Any], theta: float) -> RopeConfig:
    low, high = (_required(parameters, f"{name}_freq_factor") for name in ("low", "high"))
    if low == high:
        raise CheckpointError("config.json: low_freq_factor and high_freq_factor must differ")
    return RopeConfig(
        "llama3",
        theta,
        factor=_required(parameters, "factor"),
        original_max_positions=int(_required(parameters, "original_max_position_embeddings")),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _parse_yarn(parameters: Mapping[str, Any], config: Mapping[str, Any], theta: float) -> RopeConfig:
    if theta == 1:
        raise CheckpointError(
            "config.json: with rope_theta 1 all pairs turn alike, and yarn has nothing to interpolate"
        )
    max_positions = int(_required(config, "max_position_embeddings"))
    original = int(parameters.get("original_max_position_embeddings") or max_positions) or 1
    return RopeConfig(
        "yarn",
        theta,
        factor=float(parameters.get("factor") or max_positions / original),
        original_max_positions=original,
        beta_fast=float(parameters.get("beta_fast") or 32),
        beta_slow=float(parameters.get("beta_slow") or 1),
        truncate=bool(parameters.get("truncate", True)),
        attention_factor=parameters.get("attention_factor"),
        mscale=parameters.get("mscale"),
        mscale_all_dim=parameters.get("mscale_all_dim"),
    )


def _first(*sources: Mapping[str, Any], key: str, default: Any) -> Any:
    return next((source[key] for source in sources if source.get(key) is not None), default)


def _required(source: Mapping[str, Any], key: str) -> float:
    value = source.get(key)
    if not is_number(value):
        raise CheckpointError(f"config.json: {key} is missing or not a number")
    return float(value)
