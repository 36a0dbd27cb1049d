"""The core's share of a step, from two readings of /metrics."""

from __future__ import annotations

import pytest

from bench.lib.server.step_time import StepTime, read_step_time

PAGE = """\
# TYPE hocket_steps_total counter
hocket_steps_total {steps}
# TYPE hocket_step_seconds_total counter
hocket_step_seconds_total {step}
# TYPE hocket_core_seconds_total counter
hocket_core_seconds_total {core}
"""


def test_difference_of_two_readings() -> None:
    before = read_step_time(PAGE.format(steps=100, step=2.0, core=0.015))
    after = read_step_time(PAGE.format(steps=300, step=4.0, core=0.030))
    assert before is not None
    assert after is not None
    step = after.since(before)
    assert step.num_steps == 200
    assert step.core_us_per_step == pytest.approx(75)
    assert step.core_ratio == pytest.approx(0.0075)


def test_peer_without_our_metrics_has_no_step_time() -> None:
    assert read_step_time("# TYPE other gauge\nother 1\n") is None
    assert read_step_time("") is None


def test_interval_without_steps_has_no_time_per_step() -> None:
    idle = StepTime(5, 1.0, 0.1).since(StepTime(5, 1.0, 0.1))
    assert (idle.core_us_per_step, idle.core_ratio) == (0.0, 0.0)
