from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.engine.restart_policy import MAX_DELAY_SECONDS, WINDOW_SECONDS, RestartPolicy


def test_delays_double_and_then_the_engine_stays_dead() -> None:
    policy = RestartPolicy(max_restarts=4)
    assert [policy.delay(now) for now in (0.0, 1.0, 2.0, 3.0, 4.0)] == [0.25, 0.5, 1.0, 2.0, None]


def test_a_quiet_minute_forgives_the_delay_and_a_quiet_window_the_count() -> None:
    policy = RestartPolicy(max_restarts=2)
    assert policy.delay(0.0) == 0.25
    assert policy.delay(61.0) == 0.25
    assert policy.delay(62.0) is None
    assert policy.delay(WINDOW_SECONDS + 0.5) == 0.25


def test_an_engine_that_may_not_restart_stays_dead() -> None:
    assert RestartPolicy(max_restarts=0).delay(0.0) is None


@given(gaps=st.lists(st.floats(0.0, 300.0), max_size=50), max_restarts=st.integers(0, 8))
def test_never_more_restarts_in_a_window_than_allowed(gaps: list[float], max_restarts: int) -> None:
    policy, now, restarts = RestartPolicy(max_restarts), 0.0, []
    for gap in gaps:
        now += gap
        delay = policy.delay(now)
        if delay is not None:
            assert 0 < delay <= MAX_DELAY_SECONDS
            restarts.append(now)
        assert sum(at > now - WINDOW_SECONDS for at in restarts) <= max_restarts
