"""generation_config.json: where a model's answers end, and how its authors mean it to be sampled.

vLLM takes the same fields. What is wrong in the file is said at the start: a default that the engine refuses would
fail every request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gateway.model.checkpoint_error import CheckpointError
from schedcore.api.types import SamplingParams

MAX_TOKEN_ID = 2**31 - 1
_NO_TOKEN = -1  # some files say so instead of null

_RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": ("a number of at least 0", lambda value: 0 <= value < math.inf),
    "top_p": ("a number above 0 and at most 1", lambda value: 0 < value <= 1),
    "top_k": ("a whole number, or 0 or -1 for all", lambda value: -1 <= value <= MAX_TOKEN_ID and value == int(value)),
    "min_p": ("a number between 0 and 1", lambda value: 0 <= value <= 1),
    "repetition_penalty": ("a number above 0 and at most 100", lambda value: 0 < value <= 100),
}


def read_eos_token_ids(config: Mapping[str, Any], path: Path) -> tuple[int, ...]:
    """Of config.json or generation_config.json at `path`. Raises CheckpointError."""
    given = config.get("eos_token_id")
    ids = given if isinstance(given, list) else [] if given is None else [given]
    for token_id in ids:
        if type(token_id) is not int or not _NO_TOKEN <= token_id <= MAX_TOKEN_ID:
            raise CheckpointError(f"{path}: eos_token_id must be a token id or a list of them, not {_short(given)}.")
    return tuple(token_id for token_id in ids if token_id != _NO_TOKEN)


def read_sampling(config: Mapping[str, Any], path: Path) -> SamplingParams:
    """Raises CheckpointError."""
    values: dict[str, Any] = {}
    for name, (expected, is_allowed) in _RANGES.items():
        value = config.get(name)
        if value is None:
            continue
        if type(value) not in (int, float) or not is_allowed(value):
            raise CheckpointError(f"{path}: {name} must be {expected}, not {_short(value)}. Correct it or remove it.")
        values[name] = int(value) if name == "top_k" else float(value)
    return SamplingParams(**values)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
