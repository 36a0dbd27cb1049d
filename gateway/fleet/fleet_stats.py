"""The engines of a fleet in the figures of one: what they have now added up, what they have counted kept for good."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from schedcore.api.types import EngineStats, NodeStats

# What is so at the moment; the rest counts from an engine's start, and stays counted when the engine is gone.
GAUGES = {
    "num_running",
    "num_waiting",
    "num_units",
    "num_free_units",
    "num_cached_units",
    "num_kind_tokens",
    "num_kind_units",
    "num_uncached_tokens",
    "max_running",
    "num_host_blocks",
    "num_free_host_blocks",
    "disk_bytes",
    "max_disk_bytes",
    "num_sessions",
    "num_leases",
}
MEANS = {"uncached_ratio", "step_time_error_ratio", "promised_itl_seconds", "reader_margin"}
LEAST = {"predicted_ttft_seconds"}  # a new request goes where it is served first
GREATEST = {"block_bytes"}
OF_GATEWAY = {"servers", "nodes", "num_retries", "num_stale_incarnations", "num_routed", "num_desired_nodes"}


def sum_stats(
    living: Sequence[EngineStats],
    ended: Sequence[EngineStats],
    nodes: list[NodeStats],
    num_stale: int,
    num_routed: dict[str, int],
) -> EngineStats | None:
    """ended: the last words of engines that are gone. None before any engine has spoken."""
    if not living and not ended:
        return None
    fields: dict[str, Any] = {"nodes": nodes, "num_stale_incarnations": num_stale, "num_routed": num_routed}
    for name in EngineStats.__struct_fields__:
        if name in OF_GATEWAY:
            continue
        values = [getattr(stats, name) for stats in living]
        if name in MEANS:
            fields[name] = sum(values) / len(values) if values else 0.0
        elif name in LEAST:
            fields[name] = min(values, default=0.0)
        elif name in GREATEST:
            fields[name] = max(values, default=0)
        else:
            of_ended = [getattr(stats, name) for stats in ended]
            if name in GAUGES:  # of an engine that is gone: none, in as many classes
                of_ended = [[0] * len(value) if isinstance(value, list) else 0 for value in of_ended]
            fields[name] = _sum([*values, *of_ended])
    return EngineStats(**fields)


def add_counters(one: EngineStats | None, other: EngineStats) -> EngineStats:
    """Of two engines that are gone."""
    found = sum_stats([], [other] if one is None else [one, other], [], 0, {})
    assert found is not None
    return msgspec.structs.replace(found, nodes=[])


def _sum(values: list[Any]) -> Any:
    """Of lists element by element, the shorter ones filled up, of dicts name by name; None, where one says no limit,
    for all."""
    if any(value is None for value in values):
        return None
    if isinstance(values[0], dict):
        return {name: sum(value.get(name, 0) for value in values) for name in dict.fromkeys(chain(*values))}
    if isinstance(values[0], list):
        longest = max(len(value) for value in values)
        return [sum(value[i] for value in values if i < len(value)) for i in range(longest)]
    return sum(values)
