"""What `--scheduler-option NAME=VALUE` may change: the core's settings that have no flag of their own.

They switch parts of a policy off, so that what each part brings can be measured on a live server, and set what the
policies weigh. Each is a field of the core's configuration (cpp/core/base/config.h), where it is explained.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from schedcore._core import SchedulerConfig

Value = bool | float | str

_KINDS: dict[str, type[bool] | type[float] | type[str]] = {
    "deadline_quantile": float,
    "enable_deadlines": bool,
    "enable_mixed_steps": bool,
    "enable_plan_search": bool,
    "enable_reserve": bool,
    "enable_residents": bool,
    "enable_task_aware_eviction": bool,
    "length_quantile": float,
    "max_offline_wait_ms": float,
    "past_target_decay": float,
    "reserve_deviations": float,
    "restore": str,
    "starving_turn_ms": float,
    "token_composition": str,
}
_SWITCH = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def parse_scheduler_options(options: Iterable[str], *, enable_chunked_prefill: bool) -> dict[str, Value]:
    """Fields of the core's configuration; of equal names the last counts. Raises ValueError."""
    parsed = dict(map(_parse, options))
    if parsed:  # the ranges are the core's to check
        fields: dict[str, Any] = {"num_units": 2, "num_layers": 1, "enable_chunked_prefill": enable_chunked_prefill}
        SchedulerConfig(**(fields | parsed))
    return parsed


def _parse(option: str) -> tuple[str, Value]:
    name, equals, text = option.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or name not in _KINDS:
        raise ValueError(f"scheduler_option {option!r} is not NAME=VALUE with one of {', '.join(_KINDS)}")
    text = text.strip()
    kind = _KINDS[name]
    try:
        return name, _SWITCH[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        wanted = "true or false" if kind is bool else "a number"
        raise ValueError(f"scheduler_option {name} must be {wanted}, not {text!r}") from None
