"""The search finds the rate at which a falling attainment crosses the level."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.lib.load.rate_search import RateSearch


def find(capacity: float, search: RateSearch) -> tuple[float, list[float]]:
    """(answer, rates measured) for a server that holds the level up to its capacity."""
    measured = []
    while not search.is_done:
        measured.append(search.rate)
        search.record(search.rate, 1.0 if search.rate <= capacity else 0.5)
    return search.best, measured


@given(st.floats(0.02, 50.0), st.floats(1.01, 1.5))
def test_answer_is_within_the_precision_below_the_capacity(capacity: float, precision: float) -> None:
    best, measured = find(capacity, RateSearch(0.9, start=1.0, precision=precision))
    assert best <= capacity < best * precision
    assert len(measured) < 20
    assert len(set(measured)) == len(measured), "no rate is measured twice"


def test_a_server_that_holds_nothing_has_rate_0() -> None:
    assert find(0.0, RateSearch(0.9, start=1.0, max_factor=8)) == (0.0, [1.0, 0.5, 0.25, 0.125])


def test_a_server_that_holds_everything_has_the_highest_rate_tried() -> None:
    assert find(1e9, RateSearch(0.9, start=1.0, max_factor=8)) == (8.0, [1.0, 2.0, 4.0, 8.0])


def test_the_level_itself_holds() -> None:
    search = RateSearch(0.9, start=2.0)
    search.record(2.0, 0.9)
    assert search.best == 2.0


@pytest.mark.parametrize("wrong", [{"level": 0.0}, {"start": 0.0}, {"precision": 1.0}, {"max_factor": 1.0}])
def test_impossible_searches_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="level must be"):
        RateSearch(**({"level": 0.9, "start": 1.0} | wrong))
