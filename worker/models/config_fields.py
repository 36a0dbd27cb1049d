"""The fields of config.json that we read: of the kind and in the range that they must be, whatever the family."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard

from worker.base.errors import CheckpointError

MAX_SIZE = 2**31 - 1
MAX_LAYERS = 10_000
_MAX_SHOWN = 60  # characters of a wrong value


class _Kind(NamedTuple):
    words: str
    is_one: Callable[[Any], bool]


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_integer(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


_SIZE = _Kind(f"a whole number from 1 to {MAX_SIZE}", lambda value: _is_integer(value, 1, MAX_SIZE))
_LAYERS = _Kind(f"a whole number from 1 to {MAX_LAYERS}", lambda value: _is_integer(value, 1, MAX_LAYERS))
_COUNT = _Kind(f"a whole number from 0 to {MAX_SIZE}", lambda value: _is_integer(value, 0, MAX_SIZE))
POSITIVE = _Kind("a number above 0", lambda value: is_number(value) and value > 0)
_TEXT = _Kind("a string", lambda value: isinstance(value, str))
_TEXTS = _Kind("a list of strings", lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value))
_OBJECT = _Kind("an object", lambda value: isinstance(value, dict))

_FIELDS: dict[str, _Kind] = {
    "architectures": _TEXTS,
    "num_hidden_layers": _LAYERS,
    **dict.fromkeys(("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"), _SIZE),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "word_embed_proj_dim", "max_position_embeddings"), _SIZE),
    **dict.fromkeys(("sliding_window", "max_window_layers"), _COUNT),
    **dict.fromkeys(("rms_norm_eps", "rope_theta", "partial_rotary_factor"), POSITIVE),
    **dict.fromkeys(("hidden_act", "activation_function", "dtype", "torch_dtype"), _TEXT),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), _OBJECT),
    "layer_types": _TEXTS,
}
_NULL_SAYS_SOMETHING = ("sliding_window",)  # null: none; absent: the family's default


def checked_fields(config: object) -> dict[str, Any]:
    """Without what is null, which is as good as absent. Raises CheckpointError naming the field."""
    if not isinstance(config, dict):
        raise CheckpointError("config.json is not a JSON object")
    fields = {name: value for name, value in config.items() if value is not None or name in _NULL_SAYS_SOMETHING}
    for name, kind in _FIELDS.items():
        if fields.get(name) is not None:
            check_field(fields, name, kind)
    return fields


def check_field(fields: Mapping[str, Any], name: str, kind: _Kind) -> None:
    """Raises CheckpointError."""
    if not kind.is_one(fields[name]):
        value = repr(fields[name])
        shown = value if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]}..."
        raise CheckpointError(f"config.json: {name} must be {kind.words}, not {shown}")
