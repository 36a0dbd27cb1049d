"""Metrics of the forms in which the device keeps tokens: K and V, hidden states, or recomputed in every step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from schedcore.types import EngineStats

_KINDS = ("kv", "hidden")
_CONVERSIONS = ("hidden_to_kv", "kv_to_uncached", "uncached_to_kv")


def form_metrics(stats: EngineStats) -> Iterator[Metric]:
    tokens, units = stats.num_kind_tokens or [0, 0], stats.num_kind_units or [0, 0]
    ratios = [num_units / stats.num_units if stats.num_units else 0.0 for num_units in units]
    by_form = ([*_KINDS, "uncached"], [*tokens, stats.num_uncached_tokens])
    yield _gauge("cache_tokens", "Tokens in device memory by kind, and those recomputed in every step.", *by_form)
    yield _gauge("cache_kind_units", "Units of the pool that blocks of the kind take.", _KINDS, units)
    yield _gauge("cache_kind_usage_ratio", "Share of the pool that blocks of the kind take.", _KINDS, ratios)
    conversions = CounterMetricFamily(
        "hocket_cache_conversions", "Running requests whose form changed.", labels=["change"]
    )
    for change, num in zip(_CONVERSIONS, stats.num_conversions or [0] * len(_CONVERSIONS), strict=True):
        conversions.add_metric([change], num)
    yield conversions
    uncached = CounterMetricFamily(
        "hocket_uncached_tokens",
        "Uncached tokens, step by step: computed through all layers, or loaded from the host for most.",
        labels=["from"],
    )
    for source, num in (("compute", stats.num_recomputed_tokens), ("host", stats.num_loaded_tokens)):
        uncached.add_metric([source], num)
    yield uncached


def _gauge(name: str, text: str, kinds: Iterable[str], values: Iterable[float]) -> Metric:
    family = GaugeMetricFamily(f"hocket_{name}", text, labels=["kind"])
    for kind, value in zip(kinds, values, strict=True):
        family.add_metric([kind], value)
    return family
