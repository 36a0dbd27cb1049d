"""Metrics of the memory tiers: device, host, disk, and the hosts of other nodes."""

from __future__ import annotations

from collections.abc import Callable

from gateway.metrics.catalogue.family import Chapter, Family, Kind
from schedcore.api.types import EngineStats

_TIERS = ("device", "host", "disk")
_MOVES = ("found", "dropped", "unknown", "refused", "failed")


def _counter(name: str, text: str, read: Callable[[EngineStats], float], detail: str = "") -> Family:
    return Family(Kind.COUNTER, name, text, lambda r: read(r.stats), detail=detail)


TIERS = Chapter(
    "Memory tiers",
    "[caching.md](caching.md) explains the tiers.",
    (
        Family(
            Kind.COUNTER,
            "hocket_tier_hit_tokens",
            "Cached prompt tokens by the tier.",
            lambda r: dict(zip(_TIERS, r.stats.num_hit_tokens or [0] * len(_TIERS), strict=True)),
            ("tier",),
            "At first admissions, by where they were found: the device, or brought up from `host` or `disk` for the "
            "request; `disk` are other nodes' hosts, too. What an advisory brought up before counts as `device`.",
        ),
        _counter(
            "hocket_restores",
            "Waits of requests until a slower tier's blocks were there.",
            lambda s: s.num_restores,
            "From the disk a request waits twice.",
        ),
        _counter(
            "hocket_restore_seconds_saved",
            "Predicted time to compute what was restored instead, less the time to move it.",
            lambda s: s.restore_seconds_saved,
        ),
        Family(
            Kind.COUNTER,
            "hocket_tier_moved_blocks",
            "Blocks moved between tiers.",
            lambda r: {
                "save": r.stats.num_saved_blocks,
                "load": r.stats.num_loaded_blocks,
                "store": r.stats.num_stored_blocks,
                "fetch": r.stats.num_fetched_blocks,
            },
            ("move",),
            "`save` device to host, `load` back, `store` host to disk, `fetch` back.",
        ),
        _counter(
            "hocket_tier_lost_blocks",
            "Blocks that the disk should have had: damaged or dropped.",
            lambda s: s.num_lost_blocks,
        ),
        _counter(
            "hocket_pulled_bytes",
            "Cache that came from other nodes.",
            lambda s: s.num_pulled_blocks * s.block_bytes,
            "[fleet.md](fleet.md) says when that happens.",
        ),
        _counter("hocket_pull_seconds", "That this took, pull by pull.", lambda s: s.pull_seconds),
        _counter(
            "hocket_unpulled_blocks",
            "Blocks that another node should have given: damaged on the way, dropped, or its engine died.",
            lambda s: s.num_unpulled_blocks,
            "They were computed instead.",
        ),
        _counter("hocket_given_bytes", "Cache that went to other nodes.", lambda s: s.num_given_blocks * s.block_bytes),
        _counter(
            "hocket_refused_peers",
            "Engines that asked for cache and were refused.",
            lambda s: s.num_refused_peers,
            "They serve another model, dtype or layout, or meant an engine that has ended.",
        ),
        Family(
            Kind.COUNTER,
            "hocket_session_moves",
            "Sessions that were to come from another node.",
            lambda r: {result: r.stats.num_session_moves.get(result, 0) for result in _MOVES},
            ("result",),
            "`found`: it has blocks of it; `dropped`: it knows the session and has none; `unknown`; `refused`: see "
            "above; `failed`: it did not answer.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_tier_bytes",
            "That the tier takes.",
            lambda r: {
                "host": (r.stats.num_host_blocks - r.stats.num_free_host_blocks) * r.stats.block_bytes,
                "disk": r.stats.disk_bytes,
            },
            ("tier",),
        ),
        Family(
            Kind.GAUGE,
            "hocket_tier_max_bytes",
            "That the tier may take.",
            lambda r: {"host": r.stats.num_host_blocks * r.stats.block_bytes, "disk": r.stats.max_disk_bytes},
            ("tier",),
        ),
        Family(Kind.GAUGE, "hocket_sessions", "Sessions that the engine remembers.", lambda r: r.stats.num_sessions),
        Family(Kind.GAUGE, "hocket_leases", "Sessions whose next request is announced.", lambda r: r.stats.num_leases),
        _counter(
            "hocket_prepared_tokens",
            "Tokens restored or computed for announced requests.",
            lambda s: s.num_prepared_tokens,
        ),
        _counter(
            "hocket_prepared_wasted_tokens",
            "Of these, those whose request did not come.",
            lambda s: s.num_wasted_tokens,
            "Their lease ended without one.",
        ),
    ),
)
