"""What the gateway counts of advisories, and its names for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from gateway.metrics import LONG_SECONDS, Histogram


@dataclass(slots=True)
class AdvisoryMetrics:
    num_advisories: Counter[tuple[str, str]] = field(default_factory=Counter)  # (event, outcome)
    num_refused: Counter[str] = field(default_factory=Counter)  # by what ran out, or: dropped
    num_hits: int = 0
    num_misses: int = 0
    num_expired: int = 0
    num_wasted_bytes: int = 0
    lead_time: Histogram = field(default_factory=lambda: Histogram(LONG_SECONDS))

    def count(self, event: str, outcome: str) -> None:
        self.num_advisories[str(event), outcome] += 1

    def collect(self) -> Iterator[Metric]:
        counted = CounterMetricFamily(
            "hocket_advisories",
            "Advisories that were answered; deferred: coalesced with an earlier one, or the engine was busy.",
            labels=["event", "outcome"],
        )
        for (event, outcome), count in self.num_advisories.items():
            counted.add_metric([event, outcome], count)
        yield counted
        refused = CounterMetricFamily("hocket_advisories_refused", "Advisories answered 429.", labels=["reason"])
        for reason, count in self.num_refused.items():
            refused.add_metric([reason], count)
        yield refused
        results = CounterMetricFamily(
            "hocket_announced_requests",
            "Requests announced by advisories. hit: came within the lease and found its cache; miss: came, and did "
            "not; expired: never came.",
            labels=["result"],
        )
        for result, count in (("hit", self.num_hits), ("miss", self.num_misses), ("expired", self.num_expired)):
            results.add_metric([result], count)
        yield results
        yield CounterMetricFamily(
            "hocket_advisory_wasted_bytes", "Cache that leases held until they expired.", self.num_wasted_bytes
        )
        lead = HistogramMetricFamily(
            "hocket_advisory_lead_seconds", "From a session's first advisory to the request it announced.", labels=[]
        )
        bounds = [*map(str, self.lead_time.bounds), "+Inf"]
        counts = list(accumulate(self.lead_time.counts))
        lead.add_metric([], list(zip(bounds, counts, strict=True)), sum_value=self.lead_time.sum)
        yield lead
