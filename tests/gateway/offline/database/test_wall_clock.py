"""The system's clock is believed as long as it agrees with one that nobody can set."""

from __future__ import annotations

import logging

import pytest

from fakes.manual_clock import ManualClock
from gateway.offline.database.wall_clock import MAX_STEP_SECONDS, WallClock

NOW = 1_700_000_000.0


@pytest.fixture
def wall() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def steady() -> ManualClock:
    return ManualClock(500.0)


def test_small_corrections_are_followed(wall: ManualClock, steady: ManualClock) -> None:
    clock = WallClock(wall, steady)
    for correction in (0.0, MAX_STEP_SECONDS - 11, -MAX_STEP_SECONDS + 1, 3.0):
        steady.now += 10
        wall.now += 10 + correction
        assert clock() == wall.now
    assert clock.jump_seconds == 0


@pytest.mark.parametrize("jump", [40 * 86_400.0, -40 * 86_400.0, MAX_STEP_SECONDS + 1])
def test_time_goes_on_as_if_it_had_not_jumped_until_it_jumps_back(
    wall: ManualClock, steady: ManualClock, jump: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = WallClock(wall, steady)
    wall.now += jump
    for seconds in range(0, 7200, 600):
        assert clock() == NOW + seconds
        assert clock.jump_seconds == jump
        steady.now += 600
        wall.now += 600
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2  # once an hour
    wall.now -= jump
    assert clock() == NOW + 7200 == wall.now
    assert clock.jump_seconds == 0


def test_a_machine_that_slept_has_not_jumped(wall: ManualClock, steady: ManualClock) -> None:
    clock = WallClock(wall, steady)
    steady.now += 8 * 3600
    wall.now += 8 * 3600
    assert clock() == NOW + 8 * 3600


def test_the_system_is_asked_by_default() -> None:
    clock = WallClock()
    assert clock() == pytest.approx(clock.wall(), abs=60)
