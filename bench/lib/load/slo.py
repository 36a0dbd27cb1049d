"""Whether requests met their targets; the definitions are those of docs/metrics.md."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bench.lib.load.load_report import ratio
from bench.lib.load.request_trace import RequestTrace

GAPS_PER_VIOLATION = 100  # one in so many may exceed the target: the P99 counts


class Targets(msgspec.Struct, frozen=True):
    """Milliseconds; None where there is no target."""

    ttft_ms: float | None
    itl_ms: float | None


class Attainment(msgspec.Struct, frozen=True):
    """Shares of all requests; one that failed attains nothing."""

    num_requests: int
    ttft: float
    itl: float
    both: float
    goodput: float  # requests per second that attained both, over first arrival to last completion


def ttft_attained(trace: RequestTrace, targets: Targets) -> bool:
    return not trace.error and (targets.ttft_ms is None or trace.ttft * 1e3 <= targets.ttft_ms)


def itl_attained(trace: RequestTrace, targets: Targets) -> bool:
    """At most one in a hundred of its gaps, rounded down, exceeds the target."""
    if trace.error or targets.itl_ms is None:
        return not trace.error
    num_over = sum(gap * 1e3 > targets.itl_ms for gap in trace.itls)
    return num_over <= (trace.num_output_tokens - 1) // GAPS_PER_VIOLATION


def attainment(traces: Sequence[RequestTrace], targets: Targets) -> Attainment:
    in_time = [ttft_attained(trace, targets) for trace in traces]
    steady = [itl_attained(trace, targets) for trace in traces]
    num_both = sum(a and b for a, b in zip(in_time, steady, strict=True))
    start = min((trace.arrival for trace in traces), default=0.0)
    duration = max((trace.completion for trace in traces), default=start) - start
    num = len(traces)
    return Attainment(
        num, ratio(sum(in_time), num), ratio(sum(steady), num), ratio(num_both, num), ratio(num_both, duration)
    )
