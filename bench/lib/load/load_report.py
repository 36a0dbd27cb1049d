"""Many request traces summarised: throughput, latency percentiles, errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from bench.lib.load.request_trace import RequestTrace


class Distribution(msgspec.Struct, frozen=True):
    """Milliseconds; percentiles interpolate linearly between order statistics."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class LoadReport(msgspec.Struct, frozen=True):
    """One run of a load. A distribution is None when no request gave a sample of it."""

    num_requests: int
    num_errors: int
    errors: dict[str, int]  # message -> how many requests
    wall_seconds: float  # first arrival to last completion
    num_output_tokens: int
    output_tokens_per_second: float
    requests_per_second: float
    chunks_per_token: float  # 1: every token was streamed on its own
    client_cpu_us_per_token: float
    ttft_ms: Distribution | None
    itl_ms: Distribution | None
    tpot_ms: Distribution | None
    e2e_ms: Distribution | None


def distribution(seconds: Sequence[float]) -> Distribution | None:
    if not seconds:
        return None
    sample = np.asarray(seconds) * 1e3
    p50, p90, p99 = np.percentile(sample, (50, 90, 99))
    return Distribution(float(sample.mean()), float(p50), float(p90), float(p99), float(sample.max()))


def summarize(traces: Sequence[RequestTrace], client_cpu_seconds: float = 0.0) -> LoadReport:
    """Failed requests count as errors and lengthen the run; their tokens and latencies count nowhere."""
    good = [trace for trace in traces if not trace.error]
    start = min((trace.arrival for trace in traces), default=0.0)
    wall = max((trace.completion for trace in traces), default=start) - start
    num_tokens = sum(trace.num_output_tokens for trace in good)
    num_chunks = sum(len(trace.chunk_times) for trace in good)
    return LoadReport(
        num_requests=len(traces),
        num_errors=len(traces) - len(good),
        errors=dict(Counter(trace.error for trace in traces if trace.error)),
        wall_seconds=wall,
        num_output_tokens=num_tokens,
        output_tokens_per_second=ratio(num_tokens, wall),
        requests_per_second=ratio(len(good), wall),
        chunks_per_token=ratio(num_chunks, num_tokens),
        client_cpu_us_per_token=ratio(client_cpu_seconds * 1e6, num_tokens),
        ttft_ms=distribution([trace.ttft for trace in good]),
        itl_ms=distribution([itl for trace in good for itl in trace.itls]),
        tpot_ms=distribution([trace.tpot for trace in good if trace.tpot is not None]),
        e2e_ms=distribution([trace.e2e for trace in good]),
    )


def ratio(numerator: float, denominator: float) -> float:
    """0 where there was nothing to divide by: an empty run has no throughput."""
    return numerator / denominator if denominator else 0.0
