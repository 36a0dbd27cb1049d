"""Metrics of the memory tiers and of what the engine prepares for announced requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from schedcore.types import EngineStats

_TIERS = ("device", "host", "disk")

_COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("restores", "Waits of requests until a slower tier's blocks were there.", lambda s: s.num_restores),
    (
        "restore_seconds_saved",
        "Predicted time to compute what was restored instead, less the time to move it.",
        lambda s: s.restore_seconds_saved,
    ),
    ("tier_lost_blocks", "Blocks that the disk should have had: damaged or dropped.", lambda s: s.num_lost_blocks),
    ("prepared_tokens", "Tokens restored or computed for announced requests.", lambda s: s.num_prepared_tokens),
    ("prepared_wasted_tokens", "Of these, those whose request did not come.", lambda s: s.num_wasted_tokens),
)


def tier_metrics(stats: EngineStats) -> Iterator[Metric]:
    for name, text, value in _COUNTERS:
        yield CounterMetricFamily(f"hocket_{name}", text, value=value(stats))
    hits = CounterMetricFamily("hocket_tier_hit_tokens", "Cached prompt tokens by the tier.", labels=["tier"])
    for tier, num_tokens in zip(_TIERS, stats.num_hit_tokens or [0] * len(_TIERS), strict=True):
        hits.add_metric([tier], num_tokens)
    yield hits
    moves = CounterMetricFamily("hocket_tier_moved_blocks", "Blocks moved between tiers.", labels=["move"])
    for move, num_blocks in (
        ("save", stats.num_saved_blocks),
        ("load", stats.num_loaded_blocks),
        ("store", stats.num_stored_blocks),
        ("fetch", stats.num_fetched_blocks),
    ):
        moves.add_metric([move], num_blocks)
    yield moves
    num_host_blocks = stats.num_host_blocks - stats.num_free_host_blocks
    yield _by_tier("bytes", "That the tier takes.", num_host_blocks * stats.block_bytes, stats.disk_bytes)
    max_host_bytes = stats.num_host_blocks * stats.block_bytes
    yield _by_tier("max_bytes", "That the tier may take.", max_host_bytes, stats.max_disk_bytes)
    yield GaugeMetricFamily("hocket_sessions", "Sessions that the engine remembers.", value=stats.num_sessions)
    yield GaugeMetricFamily("hocket_leases", "Sessions whose next request is announced.", value=stats.num_leases)


def _by_tier(name: str, text: str, host: float, disk: float) -> Metric:
    family = GaugeMetricFamily(f"hocket_tier_{name}", text, labels=["tier"])
    family.add_metric(["host"], host)
    family.add_metric(["disk"], disk)
    return family
