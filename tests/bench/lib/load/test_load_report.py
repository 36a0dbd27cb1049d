"""Summaries of many requests."""

from __future__ import annotations

import pytest

from bench.lib.load.load_report import distribution, summarize
from bench.lib.load.request_trace import RequestTrace


def test_percentiles_interpolate_between_samples() -> None:
    sample = distribution([0.001 * i for i in range(101)])
    assert sample is not None
    assert (sample.p50, sample.p90, sample.p99, sample.max) == pytest.approx((50, 90, 99, 100))
    between = distribution([0.010, 0.020])
    assert between is not None
    assert (between.mean, between.p50, between.p90) == pytest.approx((15, 15, 19))


def test_no_sample_has_no_distribution() -> None:
    assert distribution([]) is None


def test_throughput_is_over_first_arrival_to_last_completion() -> None:
    first = RequestTrace(100.0, 4, 10, [101.0, 102.0], 102.0)
    second = RequestTrace(101.0, 4, 30, [103.0, 104.0], 104.0)
    report = summarize([second, first], client_cpu_seconds=0.004)
    assert report.wall_seconds == 4.0
    assert report.num_output_tokens == 40
    assert report.output_tokens_per_second == 10.0
    assert report.requests_per_second == 0.5
    assert report.chunks_per_token == 0.1
    assert report.client_cpu_us_per_token == pytest.approx(100.0)
    assert report.ttft_ms is not None
    assert report.ttft_ms.mean == pytest.approx(1500.0)


def test_failed_requests_are_counted_and_measured_nowhere_else() -> None:
    good = RequestTrace(0.0, 4, 10, [1.0, 2.0], 2.0)
    slow_failure = RequestTrace(0.0, 4, 5, [3.0], 5.0, error="HTTP 500")
    report = summarize([good, slow_failure, slow_failure])
    assert (report.num_requests, report.num_errors, report.errors) == (3, 2, {"HTTP 500": 2})
    assert report.output_tokens_per_second == 10 / 5.0
    assert report.ttft_ms is not None
    assert report.ttft_ms.max == 1000.0


def test_a_run_in_which_everything_failed_has_no_latencies() -> None:
    report = summarize([RequestTrace(0.0, completion=1.0, error="refused")])
    assert report.output_tokens_per_second == 0
    assert report.ttft_ms is report.itl_ms is report.tpot_ms is report.e2e_ms is None
