"""Targets met or missed, by the definitions of docs/metrics.md."""

from __future__ import annotations

import pytest

from bench.lib.load.request_trace import RequestTrace
from bench.lib.load.slo import Attainment, Targets, attainment, itl_attained, ttft_attained

TARGETS = Targets(ttft_ms=1000.0, itl_ms=150.0)


def trace(arrival: float, first: float, gaps: list[float], error: str = "") -> RequestTrace:
    times = [first + sum(gaps[:i]) for i in range(len(gaps) + 1)]
    return RequestTrace(arrival, 4, len(times), times, times[-1], error)


@pytest.mark.parametrize(("first", "expected"), [(1.0, True), (1.001, False)])
def test_ttft_counts_from_arrival(first: float, expected: bool) -> None:
    assert ttft_attained(trace(0.0, first, []), TARGETS) is expected


@pytest.mark.parametrize(
    ("num_gaps", "num_long", "expected"), [(99, 0, True), (99, 1, False), (100, 1, True), (199, 2, False)]
)
def test_one_gap_in_a_hundred_may_be_longer(num_gaps: int, num_long: int, expected: bool) -> None:
    gaps = [0.2] * num_long + [0.1] * (num_gaps - num_long)
    assert itl_attained(trace(0.0, 0.5, gaps), TARGETS) is expected


def test_without_a_target_whatever_finished_attains() -> None:
    slow = trace(0.0, 100.0, [9.0])
    assert ttft_attained(slow, Targets(None, None))
    assert itl_attained(slow, Targets(None, None))
    assert not itl_attained(trace(0.0, 0.1, [], error="gone"), Targets(None, None))


def test_shares_are_of_all_requests_and_goodput_of_the_whole_time() -> None:
    good, late = trace(0.0, 0.5, [0.1]), trace(0.0, 2.0, [0.1])
    uneven, failed = trace(1.0, 1.5, [0.4]), trace(0.0, 0.5, [2.5, 1.0], error="HTTP 500")
    assert attainment([good, late, uneven, failed], TARGETS) == Attainment(4, 0.5, 0.5, 0.25, 1 / 4.0)


def test_nothing_attains_nothing() -> None:
    assert attainment([], TARGETS) == Attainment(0, 0.0, 0.0, 0.0, 0.0)
