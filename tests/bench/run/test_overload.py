"""What a crowd of requests came to, and what of it is not as it must be."""

from __future__ import annotations

import pytest

from bench.lib.load.request_trace import RequestTrace
from bench.lib.load.slo import Targets
from bench.run.overload import Outcome, describe, outcome, verdict

TARGETS = Targets(1000.0, 100.0)


def served(ttft: float, *gaps: float) -> RequestTrace:
    times = [ttft]
    for gap in gaps:
        times.append(times[-1] + gap)
    return RequestTrace(0.0, 8, len(times), times, times[-1])


def failed(error: str, after: float) -> RequestTrace:
    return RequestTrace(0.0, completion=after, error=error)


def test_who_is_in_time_who_was_refused_and_who_was_lost() -> None:
    traces = [
        served(0.5, 0.05, 0.05),
        served(0.5, 0.05, 0.3),  # a gap too long
        served(7.0, 0.05),  # too late
        failed("HTTP 429: overloaded", 0.02),
        failed("TimeoutError: ", 30.0),
    ]
    found = outcome("ours", "overload", 2.5, 2.0, traces, TARGETS)
    assert (found.num_served, found.num_refused, found.failures) == (3, 1, {"TimeoutError: ": 1})
    assert found.goodput == 0.5  # one in two seconds
    assert found.longest_wait == 7.0
    assert found.slowest_refusal == pytest.approx(0.02)


def test_nobody_was_served() -> None:
    found = outcome("ours", "overload", 1.0, 1.0, [failed("HTTP 429: overloaded", 0.1)], TARGETS)
    assert (found.num_served, found.goodput, found.longest_wait) == (0, 0.0, 0.0)


def of(load: str, goodput: float, **fields: object) -> Outcome:
    plain = {"failures": {}, "longest_wait": 1.0, "slowest_refusal": 0.1} | fields
    return Outcome("hocket", load, 10.0, 9, 1, goodput=goodput, ttft_p50=0.1, ttft_p99=0.2, **plain)  # type: ignore[arg-type]


def test_what_holds_and_what_does_not() -> None:
    capacity = of("capacity", 10.0)
    assert verdict([capacity, of("overload", 9.6)], 60.0) == []
    worse = of("overload", 9.4, failures={"lost": 2}, longest_wait=61.0, slowest_refusal=1.5)
    assert verdict([capacity, worse], 60.0) == [
        "lost 2 requests",
        "somebody waited 61.0 s for a token",
        "a refusal took 1.5 s",
        "goodput fell to 94%",
    ]


def test_table_has_a_row_per_load() -> None:
    rows = describe([of("capacity", 10.0), of("overload", 9.4)]).splitlines()
    assert len(rows) == 2 + 2
    assert [column.strip() for column in rows[-1].strip("|").split("|")][:6] == [
        "hocket",
        "overload",
        "10.0",
        "9",
        "1",
        "0",
    ]
