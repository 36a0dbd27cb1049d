"""What the engine says of the forms in which it keeps tokens, as Prometheus reads it."""

from __future__ import annotations

import msgspec
from prometheus_client.core import Metric

from gateway.exposition import _NO_STATS
from gateway.form_exposition import form_metrics


def samples(metrics: list[Metric]) -> dict[tuple[str, ...], float]:
    return {(s.name, *s.labels.values()): s.value for metric in metrics for s in metric.samples}


def test_before_the_engine_has_spoken_there_is_nothing() -> None:
    assert set(samples(list(form_metrics(_NO_STATS))).values()) == {0}


def test_tokens_units_and_conversions_by_kind() -> None:
    stats = msgspec.structs.replace(
        _NO_STATS,
        num_units=400,
        num_free_units=100,
        num_kind_tokens=[800, 1600],
        num_kind_units=[100, 100],
        num_uncached_tokens=32,
        num_conversions=[1, 2, 3],
        num_recomputed_tokens=160,
        num_loaded_tokens=32,
    )
    found = samples(list(form_metrics(stats)))
    assert [found["hocket_cache_tokens", kind] for kind in ("kv", "hidden", "uncached")] == [800, 1600, 32]
    assert [found["hocket_cache_kind_units", kind] for kind in ("kv", "hidden")] == [100, 100]
    assert [found["hocket_cache_kind_usage_ratio", kind] for kind in ("kv", "hidden")] == [0.25, 0.25]
    changes = ("hidden_to_kv", "kv_to_uncached", "uncached_to_kv")
    assert [found["hocket_cache_conversions_total", change] for change in changes] == [1, 2, 3]
    assert [found["hocket_uncached_tokens_total", source] for source in ("compute", "host")] == [160, 32]
