"""What the gateway counts of advisories."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gateway.metrics.histogram import LONG_SECONDS, Histogram
from schedcore.api.types import AdvisoryEvent


@dataclass(slots=True)
class AdvisoryMetrics:
    num_advisories: Counter[tuple[str, str]] = field(default_factory=Counter)  # (event, outcome)
    num_refused: Counter[str] = field(default_factory=Counter)  # by what ran out, or: dropped
    num_hits: int = 0
    num_misses: int = 0
    num_expired: int = 0
    num_wasted_bytes: int = 0
    lead_time: Histogram = field(default_factory=lambda: Histogram(LONG_SECONDS))

    def count(self, event: AdvisoryEvent, outcome: str) -> None:
        self.num_advisories[event.name.lower(), outcome] += 1
