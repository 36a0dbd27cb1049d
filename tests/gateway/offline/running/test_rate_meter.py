from __future__ import annotations

import pytest

from gateway.offline.running.rate_meter import RateMeter


def test_steady_events_give_their_rate_at_once() -> None:
    meter = RateMeter(30.0)
    assert meter.per_second is None
    for second in range(5):
        meter.advance(float(second))
        meter.add(7)
    meter.advance(5.0)
    assert meter.per_second == pytest.approx(7.0, rel=0.05)


def test_the_past_is_forgotten() -> None:
    meter = RateMeter(10.0)
    meter.advance(0.0)
    meter.add(100)
    for second in range(1, 101):
        meter.advance(float(second))
        meter.add(1)
    assert meter.per_second == pytest.approx(1.0, rel=0.1)


def test_time_that_does_not_count_changes_nothing() -> None:
    meter = RateMeter(10.0)
    meter.advance(0.0)
    meter.add(10)
    meter.advance(1.0)
    before = meter.per_second
    meter.advance(1000.0, is_counting=False)
    assert meter.per_second == before
