"""What the engine says of the forms in which it keeps tokens, as Prometheus reads it."""

from __future__ import annotations

import msgspec

from fakes.scrape import scrape
from gateway.metrics.catalogue.forms import FORMS
from gateway.metrics.catalogue.reading import NO_STATS
from schedcore._core import RatioReason


def test_before_the_engine_has_spoken_there_is_nothing() -> None:
    assert set(scrape(FORMS).values()) == {0}


def test_tokens_units_and_conversions_by_kind() -> None:
    stats = msgspec.structs.replace(
        NO_STATS,
        num_units=400,
        num_free_units=100,
        num_kind_tokens=[800, 1600, 400],
        num_kind_units=[100, 100, 50],
        num_uncached_tokens=32,
        num_conversions=[1, 2, 3, 4],
        num_ratio_steps=list(range(len(RatioReason))),
        max_running=24,
        uncached_ratio=0.25,
        num_recomputed_tokens=160,
        num_loaded_tokens=32,
    )
    found = scrape(FORMS, stats)
    assert [found["hocket_cache_tokens", kind] for kind in ("kv", "hidden", "int8", "uncached")] == [800, 1600, 400, 32]
    assert [found["hocket_cache_kind_units", kind] for kind in ("kv", "hidden", "int8")] == [100, 100, 50]
    assert [found["hocket_cache_kind_usage_ratio", kind] for kind in ("kv", "hidden", "int8")] == [0.25, 0.25, 0.125]
    changes = ("hidden_to_kv", "kv_to_uncached", "uncached_to_kv", "to_int8")
    assert [found["hocket_cache_conversions_total", change] for change in changes] == [1, 2, 3, 4]
    assert (found["hocket_solver_max_running",], found["hocket_solver_uncached_ratio",]) == (24, 0.25)
    assert found["hocket_solver_steps_total", "targets"] == RatioReason.TARGETS
    assert [found["hocket_uncached_tokens_total", source] for source in ("compute", "host")] == [160, 32]
