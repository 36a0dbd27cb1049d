"""What the gateway counts, per class of traffic. Recording is a few additions; `catalogue/` gives it names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gateway.metrics.connection_metrics import ConnectionMetrics
from gateway.metrics.histogram import LATENCY_SECONDS, LONG_SECONDS, Histogram
from gateway.metrics.offline_metrics import OfflineMetrics
from gateway.metrics.resumption_metrics import ResumptionMetrics
from schedcore.api.types import RequestClass

TOKEN_COUNTS = tuple(float(2**i) for i in range(21))

SERVED_CLASSES = (RequestClass.ONLINE, RequestClass.OFFLINE)


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
        self.resumption = ResumptionMetrics()
        self.of_class = {request_class: ClassMetrics() for request_class in SERVED_CLASSES}
        self.num_responses: Counter[tuple[str, int]] = Counter()  # (route, status)
