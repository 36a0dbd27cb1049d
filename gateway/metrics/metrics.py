"""What the gateway counts, per class of traffic. Recording is a few additions; `catalogue/` gives it names."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.metrics.connection_metrics import ConnectionMetrics
from gateway.metrics.offline_metrics import OfflineMetrics
from schedcore.api.types import RequestClass

LATENCY_SECONDS = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
)
LONG_SECONDS = (*LATENCY_SECONDS, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
TOKEN_COUNTS = tuple(float(2**i) for i in range(21))

SERVED_CLASSES = (RequestClass.ONLINE, RequestClass.OFFLINE)


class Histogram:
    """Counts per bucket, `bounds` being inclusive upper ends; one more bucket takes the rest."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @classmethod
    def sum_of(cls, parts: Sequence[Histogram]) -> Histogram:
        """REQUIRES: one part at least; all have the same bounds."""
        total = cls(parts[0].bounds)
        total.counts = [sum(counts) for counts in zip(*(part.counts for part in parts), strict=True)]
        total.sum = sum(part.sum for part in parts)
        return total

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


def _latency() -> Histogram:
    return Histogram(LATENCY_SECONDS)


def _long() -> Histogram:
    return Histogram(LONG_SECONDS)


def _tokens() -> Histogram:
    return Histogram(TOKEN_COUNTS)


@dataclass(slots=True)
class ClassMetrics:
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_refused: int = 0  # by admission
    num_finished: Counter[str] = field(default_factory=Counter)  # choices, by finish reason
    num_by_target: Counter[tuple[str, str]] = field(default_factory=Counter)  # choices, by target and outcome
    ttft: Histogram = field(default_factory=_long)
    itl: Histogram = field(default_factory=_latency)
    tpot: Histogram = field(default_factory=_latency)
    e2e: Histogram = field(default_factory=_long)
    prompt_lengths: Histogram = field(default_factory=_tokens)
    output_lengths: Histogram = field(default_factory=_tokens)


class Metrics:
    def __init__(self) -> None:
        self.offline = OfflineMetrics()
        self.connections = ConnectionMetrics()
        self.of_class = {request_class: ClassMetrics() for request_class in SERVED_CLASSES}
        self.num_responses: Counter[tuple[str, int]] = Counter()  # (route, status)
