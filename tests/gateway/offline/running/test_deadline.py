from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from gateway.offline.running.deadline import Dither, Forecast, forecast

DAY = 86_400.0


def at(now: float, num_left: int, rate: float | None) -> Forecast:
    return forecast(now=now, started_at=0.0, ends_at=DAY, num_left=num_left, rows_per_second=rate)


def test_batch_with_time_to_spare_is_not_promoted() -> None:
    early = at(0.0, 10_000, 1.0)
    assert early.margin_seconds == DAY - 10_000
    assert early.promoted_share == 0.0
    assert early.weight == 1.0


def test_batch_that_will_just_be_done_is_promoted_wholly() -> None:
    late = at(DAY - 100, 100, 1.0)
    assert late.margin_seconds == 0.0
    assert late.promoted_share == 1.0
    assert late.weight == 4.0


def test_promotion_is_gradual() -> None:
    shares = [at(DAY - 100, num_left, 1.0).promoted_share for num_left in (70, 80, 90, 100)]
    assert shares[0] < 0.01
    assert shares == sorted(shares)
    assert 0 < shares[1] < shares[2] < 1


def test_batch_without_a_measured_rate_goes_by_the_clock() -> None:
    assert at(0.5 * DAY, 5, None).promoted_share == 0.0
    assert at(0.95 * DAY, 5, None).promoted_share > 0.8
    assert at(0.5 * DAY, 5, None).margin_seconds == math.inf


def test_finished_batch_is_under_no_pressure() -> None:
    assert at(DAY + 5, 0, None).pressure == 0.0


def test_after_the_window_everything_left_is_late() -> None:
    assert at(DAY + 5, 3, 100.0).margin_seconds == -5.0
    assert at(DAY + 5, 3, 100.0).promoted_share == 1.0


@given(
    now=st.floats(0.0, 2 * DAY),
    num_left=st.integers(0, 50_000),
    rate=st.none() | st.floats(0.0, 1e4),
    slower=st.floats(0.01, 1.0),
)
def test_less_time_and_a_lower_rate_never_promote_less(
    now: float, num_left: int, rate: float | None, slower: float
) -> None:
    before = at(now, num_left, rate)
    assert 0.0 <= before.promoted_share <= 1.0
    assert at(now + 60, num_left, rate).promoted_share >= before.promoted_share
    if rate and rate * slower:
        assert at(now, num_left, rate * slower).promoted_share >= before.promoted_share


@given(share=st.floats(0.0, 1.0), n=st.integers(1, 300))
def test_dither_says_yes_in_the_right_proportion(share: float, n: int) -> None:
    dither = Dither()
    assert abs(sum(dither.next(share) for _ in range(n)) - n * share) < 1.0 + 1e-6
