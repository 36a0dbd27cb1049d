from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.token_bucket import TokenBucket


def test_a_burst_then_the_rate() -> None:
    bucket = TokenBucket(per_second=2.0, burst=3.0)
    taken = 0
    while not bucket.seconds_until_free(0.0):
        bucket.take(1.0)
        taken += 1
    assert taken == 3
    assert bucket.seconds_until_free(0.0) == pytest.approx(0.0, abs=1e-6)
    assert bucket.seconds_until_free(0.5) == 0.0


def test_what_is_larger_than_the_burst_is_paid_off_later() -> None:
    bucket = TokenBucket(per_second=10.0, burst=10.0)
    assert bucket.seconds_until_free(0.0) == 0.0
    bucket.take(60.0)
    assert bucket.seconds_until_free(0.0) == pytest.approx(5.0)
    assert bucket.seconds_until_free(5.1) == 0.0


@given(
    st.floats(0.1, 100),
    st.floats(1, 50),
    st.lists(st.tuples(st.floats(0, 2), st.floats(0.01, 60)), min_size=1, max_size=50),
)
def test_never_more_than_burst_plus_rate_plus_one_debt(
    rate: float, burst: float, steps: list[tuple[float, float]]
) -> None:
    bucket, now, taken = TokenBucket(rate, burst), 0.0, 0.0
    for gap, amount in steps:
        now += gap
        if not bucket.seconds_until_free(now):
            bucket.take(amount)
            taken += amount
    assert taken <= burst + rate * now + 60 + 1e-6
