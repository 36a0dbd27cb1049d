"""A metric, declared once: its name, what it means, and how it is read."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.metrics.catalogue.reading import Reading
from gateway.metrics.histogram import Histogram

Value: TypeAlias = float | Histogram


class Kind(enum.StrEnum):
    COUNTER = "counter"  # since the server, or its engine, has started
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    kind: Kind
    name: str  # without the _total of counters
    help: str  # a sentence, for Prometheus and for docs/metrics.md
    read: Callable[[Reading], Value | Mapping[Any, Value]]  # with labels: by their values, one as str, several as tuple
    labels: tuple[str, ...] = ()
    detail: str = ""  # more of it, for docs/metrics.md only

    @property
    def shown_name(self) -> str:
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name

    def collect(self, reading: Reading) -> Metric:
        """Its samples of this moment."""
        found = self.read(reading)
        samples = found if isinstance(found, Mapping) else {(): found}
        family = _FAMILIES[self.kind](self.name, self.help, labels=self.labels)
        for key, value in samples.items():
            labels = [key] if isinstance(key, str) else list(key)
            if isinstance(value, Histogram):
                family.add_metric(labels, list(_buckets(value)), sum_value=value.sum)
            else:
                family.add_metric(labels, value)
        metric: Metric = family
        return metric


@dataclass(frozen=True, slots=True)
class Chapter:
    """The metrics of one noun."""

    title: str
    text: str  # what is true of all of them; docs/metrics.md
    families: tuple[Family, ...]


_FAMILIES: dict[Kind, Any] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


def _buckets(histogram: Histogram) -> Iterator[tuple[str, int]]:
    """Upper ends and cumulative counts."""
    return zip([*map(str, histogram.bounds), "+Inf"], accumulate(histogram.counts), strict=True)
