"""The catalogue as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from gateway.metrics.catalogue import CATALOGUE
from gateway.metrics.catalogue.reading import Reading, Sources


class Exposition(Collector):
    """Reads what is counted when it is scraped, and never before."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        reading = Reading.of(self._sources)
        for chapter in CATALOGUE:
            for family in chapter.families:
                yield family.collect(reading)
