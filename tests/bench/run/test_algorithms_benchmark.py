"""The benchmark of the algorithms: every line is measured, the papers' numbers stand beside."""

from __future__ import annotations

import pytest

from bench.run.parts import algorithms as benchmark


@pytest.fixture(scope="module")
def timings() -> list[benchmark.Timing]:
    return list(benchmark.all_timings(num_calls=3))


def test_every_line_is_measured(timings: list[benchmark.Timing]) -> None:
    assert len({t.name for t in timings}) == len(timings) > 20
    assert all(0 < t.p50_us <= t.p99_us for t in timings)


def test_the_papers_numbers_stand_beside(timings: list[benchmark.Timing]) -> None:
    paper = {t.name: t.paper_us for t in timings if t.paper_us is not None}
    assert paper["knapsack, KV and hidden, 1600 candidates"] == 10_800
    assert paper["b/r, 512 requests, memory binds"] == 4_580
    assert " 10800 |" in benchmark.table(timings)


def test_comparison_with_slsqp_reports_its_cases() -> None:
    assert "2 cases" in benchmark.compare_with_slsqp(2)
