"""What the engine says of its tiers, as Prometheus reads it."""

from __future__ import annotations

import msgspec

from fakes.scrape import scrape
from gateway.metrics.catalogue.reading import NO_STATS
from gateway.metrics.catalogue.tiers import TIERS


def test_an_engine_without_tiers_has_nothing_to_say() -> None:
    assert set(scrape(TIERS).values()) == {0}


def test_occupancy_hits_and_moves() -> None:
    stats = msgspec.structs.replace(
        NO_STATS,
        num_hit_tokens=[5, 6, 7],
        num_restores=2,
        restore_seconds_saved=1.5,
        num_host_blocks=10,
        num_free_host_blocks=4,
        block_bytes=100,
        disk_bytes=800,
        max_disk_bytes=1000,
        num_loaded_blocks=3,
        num_lost_blocks=1,
        num_leases=1,
        num_pulled_blocks=4,
        num_given_blocks=5,
        pull_seconds=0.5,
        num_session_moves={"found": 2, "failed": 1},
    )
    found = scrape(TIERS, stats)
    assert [found["hocket_tier_hit_tokens_total", tier] for tier in ("device", "host", "disk")] == [5, 6, 7]
    assert [found["hocket_tier_bytes", tier] for tier in ("host", "disk")] == [600, 800]
    assert [found["hocket_tier_max_bytes", tier] for tier in ("host", "disk")] == [1000, 1000]
    assert found["hocket_tier_moved_blocks_total", "load"] == 3
    assert found["hocket_restore_seconds_saved_total",] == 1.5
    assert found["hocket_tier_lost_blocks_total",] == 1
    assert found["hocket_leases",] == 1
    assert [found["hocket_pulled_bytes_total",], found["hocket_given_bytes_total",]] == [400, 500]
    assert found["hocket_pull_seconds_total",] == 0.5
    assert [found["hocket_session_moves_total", how] for how in ("found", "failed", "refused")] == [2, 1, 0]
