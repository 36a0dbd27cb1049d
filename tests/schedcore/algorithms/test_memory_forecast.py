"""The forecast of online memory use against NumPy on the same history."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from schedcore._core import algorithms

Float64 = npt.NDArray[np.float64]


def window_statistics(times: Float64, units: Float64, now: float, begin: float) -> tuple[float, float]:
    """Mean and deviation over [begin, now] of a value that is units[i] from times[i] until times[i + 1]."""
    edges = np.clip(np.append(times, now), begin, now)
    held = np.diff(edges)
    if held.sum() == 0:
        return 0.0, 0.0
    mean = np.average(units, weights=held)
    return float(mean), float(np.sqrt(np.average((units - mean) ** 2, weights=held)))


def window_begin(first: float, now: float, window: float, num_buckets: int) -> float:
    bucket = window / num_buckets
    return max(first, first + (math.floor((now - first) / bucket) - num_buckets + 1) * bucket)


@pytest.mark.parametrize("mean_gap", [0.3, 8.0, 400.0])
def test_mean_and_deviation_equal_numpy(mean_gap: float) -> None:
    rng = np.random.default_rng(1)
    forecast = algorithms.MemoryForecast(window_seconds=600, num_buckets=20)
    times = 1e6 + np.cumsum(rng.exponential(mean_gap, 800))
    units = np.round(rng.uniform(0, 100_000, 800))
    for i, now in enumerate(times):
        forecast.update(now, int(units[i]))
        begin = window_begin(times[0], now, 600, 20)
        mean, deviation = window_statistics(times[: i + 1], units[: i + 1], now, begin)
        assert forecast.mean() == pytest.approx(mean, rel=1e-6)
        assert forecast.deviation() == pytest.approx(deviation, rel=1e-4, abs=1e-2)
        for k in (0, 1, 2):
            expected = max(0, mean + k * deviation - units[i])
            assert forecast.reserve(k) == pytest.approx(expected, rel=1e-4, abs=1.1)


def test_a_value_counts_for_as_long_as_it_stood() -> None:
    forecast = algorithms.MemoryForecast()
    forecast.update(0.0, 100)
    forecast.update(90.0, 0)
    for step in range(1000):  # many updates in little time weigh little
        forecast.update(90.0 + step * 0.01, 0)
    assert forecast.mean() == pytest.approx(90 * 100 / 99.99)


def test_steady_use_needs_no_reserve() -> None:
    forecast = algorithms.MemoryForecast()
    for now in range(0, 7200, 10):
        forecast.update(float(now), 500)
    assert (forecast.mean(), forecast.deviation(), forecast.reserve(2)) == (500, 0, 0)


def test_after_a_burst_its_memory_stays_reserved_until_the_window_has_passed() -> None:
    forecast = algorithms.MemoryForecast()
    forecast.update(0.0, 1000)
    forecast.update(1800.0, 0)
    forecast.update(3600.0, 0)
    assert forecast.reserve(2) == pytest.approx(500 + 2 * 500, abs=20)
    forecast.update(5500.0, 0)
    assert forecast.reserve(2) == 0


def test_a_long_silence_holds_the_last_value() -> None:
    forecast = algorithms.MemoryForecast()
    forecast.update(0.0, 1000)
    forecast.update(10.0, 40)
    forecast.update(1e6, 0)
    assert forecast.mean() == pytest.approx(40)
    assert forecast.deviation() == pytest.approx(0, abs=1e-3)


def test_nothing_known_reserves_nothing() -> None:
    forecast = algorithms.MemoryForecast()
    assert (forecast.mean(), forecast.deviation(), forecast.reserve(2)) == (0, 0, 0)
    forecast.update(5.0, 100)
    assert forecast.reserve(2) == 0


def test_time_never_goes_back() -> None:
    forecast = algorithms.MemoryForecast()
    forecast.update(5.0, 100)
    with pytest.raises(RuntimeError, match="time went back"):
        forecast.update(4.0, 100)
