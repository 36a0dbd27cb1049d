"""One chapter of the metrics' catalogue, read from little more than what the test is about."""

from __future__ import annotations

from types import SimpleNamespace

from gateway.metrics.advisory_metrics import AdvisoryMetrics
from gateway.metrics.catalogue.family import Chapter
from gateway.metrics.catalogue.reading import NO_STATS, Reading, Sources, Work
from gateway.metrics.metrics import Metrics
from schedcore.api.types import EngineStats

IDLE = SimpleNamespace(num_refused=0, num_dropped=0, num_jobs=0)


def scrape(chapter: Chapter, stats: EngineStats = NO_STATS, text_work: Work = IDLE) -> dict[tuple[str, ...], float]:
    """Values by (name, *label values)."""
    engine = SimpleNamespace(is_alive=True, num_restarts=0, stats=lambda: stats)
    sources = Sources(Metrics(), engine, {}, AdvisoryMetrics(), [], text_work, "demo")
    metrics = [family.collect(Reading.of(sources)) for family in chapter.families]
    return {(s.name, *s.labels.values()): s.value for metric in metrics for s in metric.samples}
