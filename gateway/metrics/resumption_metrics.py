"""What is counted of requests that went on after their engine's death."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gateway.metrics.histogram import LONG_SECONDS, Histogram


@dataclass(slots=True)
class ResumptionMetrics:
    num_resumed: Counter[str] = field(default_factory=Counter)  # by cause
    pauses: Histogram = field(default_factory=lambda: Histogram(LONG_SECONDS))  # from a death to the next token
