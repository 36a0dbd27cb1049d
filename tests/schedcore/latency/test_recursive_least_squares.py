"""Recursive least squares against NumPy's weighted solution, its guards, and the latency model that it refines."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from schedcore._core import algorithms

Float64 = npt.NDArray[np.float64]


def weighted_solution(
    x: Float64, y: Float64, weights: Float64, theta: Float64, variance: Float64, forgetting: float
) -> Float64:
    age = np.arange(len(x) - 1, -1, -1)
    scale = np.sqrt(weights * forgetting**age)
    prior = np.sqrt(forgetting ** len(x) / variance)
    rows = np.vstack([x * scale[:, None], np.diag(prior)])
    return np.asarray(np.linalg.lstsq(rows, np.concatenate([y * scale, theta * prior]), rcond=None)[0])


@pytest.mark.parametrize("forgetting", [1.0, 0.95])
@pytest.mark.parametrize("n", [1, 4, 9, 16])
def test_equals_weighted_least_squares(n: int, forgetting: float) -> None:
    rng = np.random.default_rng(n)
    truth, theta, variance = rng.uniform(5, 9, n), rng.uniform(5, 9, n), rng.uniform(0.5, 2, n)
    x, weights = rng.standard_normal((60, n)), rng.uniform(0.5, 2, 60)
    y = x @ truth + 0.1 * rng.standard_normal(60)
    estimate = algorithms.RecursiveLeastSquares(theta, variance, forgetting)
    for i in range(60):
        assert estimate.update(x[i], y[i], weights[i])
        expected = weighted_solution(x[: i + 1], y[: i + 1], weights[: i + 1], theta, variance, forgetting)
        np.testing.assert_allclose(estimate.theta, expected, rtol=1e-6)


def test_coefficients_never_turn_negative() -> None:
    rng = np.random.default_rng(1)
    estimate = algorithms.RecursiveLeastSquares(np.ones(3), np.ones(3), 0.98)
    for _ in range(300):
        x = rng.uniform(0, 1, 3)
        estimate.update(x, x @ np.array([2.0, -0.5, 1.0]))
        assert (estimate.theta >= 0).all()
    assert estimate.theta[1] == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize("seed", [1, 3])
def test_a_coefficient_at_zero_does_not_raise_what_is_known_well(seed: int) -> None:
    """Three coefficients that nearly always come together, the third of them 0 in truth: noise makes it negative."""
    rng = np.random.default_rng(seed)
    truth, first = np.array([6.0, 1.0, 0.0]), np.array([3.0, 3.0, 0.02])
    estimate = algorithms.RecursiveLeastSquares(first, (2 * first) ** 2, 0.998)
    worst = 1.0
    for i in range(20_000):
        x = np.array([1.0, 1.0, 256.0 + i % 128]) if i % 200 else np.array([1.0, 8.0, 2000.0])
        ratio = float(x @ estimate.theta / (x @ truth))
        if i > 1000:
            worst = max(worst, ratio, 1 / ratio)
        y = x @ truth * np.exp(rng.normal(0, 0.1))
        estimate.update(x, y, 1 / y**2)
    assert worst < 1.2


def test_a_silent_coefficient_neither_moves_nor_explodes() -> None:
    estimate = algorithms.RecursiveLeastSquares(np.array([1.0, 5.0]), np.ones(2), 0.9)
    for _ in range(2000):
        estimate.update(np.array([1.0, 0.0]), 3.0)
    assert estimate.theta.tolist() == [pytest.approx(3), 5.0]
    assert estimate.variance(1) == pytest.approx(10.0)
    estimate.update(np.array([1.0, 1.0]), 8.5)
    assert estimate.theta[1] < 6


def test_zero_variance_pins_a_coefficient() -> None:
    estimate = algorithms.RecursiveLeastSquares(np.array([1.0, 0.0]), np.array([1.0, 0.0]), 0.99)
    for _ in range(50):
        estimate.update(np.array([1.0, 1.0]), 4.0)
    assert estimate.theta.tolist() == [pytest.approx(4, rel=2e-2), 0.0]


@pytest.mark.parametrize(("y", "weight"), [(float("nan"), 1.0), (float("inf"), 1.0), (1.0, 0.0), (1.0, -1.0)])
def test_useless_observations_are_ignored(y: float, weight: float) -> None:
    estimate = algorithms.RecursiveLeastSquares(np.ones(2), np.ones(2), 0.99)
    assert not estimate.update(np.ones(2), y, weight)
    assert estimate.theta.tolist() == [1, 1]


# The latency model that it keeps true


def random_features(rng: np.random.Generator) -> algorithms.BatchFeatures:
    batch = algorithms.LatencyBatch(8192)
    if rng.random() < 0.6:
        batch.add_chunk(int(rng.integers(0, 2048)), int(rng.integers(64, 1024)))
    for context in rng.integers(64, 4096, rng.integers(1, 64)):
        batch.add_decode(int(context))
    return batch.features


def coefficients(scale: float) -> algorithms.LatencyCoefficients:
    return algorithms.LatencyCoefficients(
        step_base=0.002 * scale,
        prefill_pair=2e-9 * scale,
        prefill_token=6e-5 * scale,
        decode_base=0.006,
        decode_seq=4e-5 * scale,
        decode_context=3e-7 * scale,
        overlap=0.1,
    )


def refined(scale: float, steps: int, *, outlier_every: int = 0) -> algorithms.LatencyRefiner:
    """After `steps` steps on a device `scale` times slower than calibrated, with 2 % noise."""
    rng = np.random.default_rng(2)
    truth = algorithms.LatencyModel("corrected", coefficients(scale))
    refiner = algorithms.LatencyRefiner(algorithms.LatencyModel("corrected", coefficients(1.0)))
    for step in range(1, steps + 1):
        features = random_features(rng)
        seconds = truth.predict(features) * rng.normal(1, 0.02)
        refiner.observe(features, seconds * (30 if outlier_every and step % outlier_every == 0 else 1))
    return refiner


def relative_error(refiner: algorithms.LatencyRefiner, scale: float) -> float:
    truth, rng = algorithms.LatencyModel("corrected", coefficients(scale)), np.random.default_rng(3)
    features = [random_features(rng) for _ in range(200)]
    return float(np.mean([abs(refiner.model.predict(f) / truth.predict(f) - 1) for f in features]))


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.5])
def test_refinement_follows_a_device_that_is_not_as_calibrated(scale: float) -> None:
    refiner = refined(scale, 1000)
    assert relative_error(refiner, scale) < 0.02
    assert refiner.mean_relative_error < 0.05
    assert (refiner.num_observed, refiner.num_held_out) == (1000, 100)


def test_refinement_follows_a_device_that_is_faster_and_slower_by_turns() -> None:
    def mean_error(speed_gain: float) -> float:
        rng = np.random.default_rng(5)
        truth = [algorithms.LatencyModel("corrected", coefficients(scale)) for scale in (0.8, 1.25)]
        refiner = algorithms.LatencyRefiner(truth[0], speed_gain=speed_gain)
        for step in range(2000):
            features = random_features(rng)
            refiner.observe(features, truth[step // 50 % 2].predict(features) * rng.normal(1, 0.02))
        return refiner.mean_relative_error

    assert mean_error(0.3) < 0.06
    assert mean_error(0.0) > 0.15


def test_prompts_are_not_forgotten_while_others_decode_on_a_disturbed_machine() -> None:
    """One step in a hundred is a prompt. With its cost forgotten, offline chunks of ten times the time seem to fit."""
    rng = np.random.default_rng(6)
    truth, first = (
        algorithms.LatencyModel(
            "corrected",
            algorithms.LatencyCoefficients(
                step_base=base, prefill_token=token, prefill_pair=1e-7, decode_base=0.001, decode_seq=seq, overlap=0.0
            ),
        )
        for base, token, seq in ((0.006, 0.0011, 0.0009), (0.013, 0.0023, 0.0023))
    )
    refiner = algorithms.LatencyRefiner(first, prior_deviation=2.0)
    ratios = []

    def step(slowdown: float, *, chunk: tuple[int, int] | None = None, context: int | None = None) -> None:
        batch = algorithms.LatencyBatch(8192)
        if chunk is not None:
            batch.add_chunk(*chunk)
        if context is not None:
            batch.add_decode(context)
        if chunk == (0, 256):
            ratios.append(refiner.model.predict(batch.features) / truth.predict(batch.features))
        refiner.observe(batch.features, truth.predict(batch.features) * max(0.85, rng.normal(slowdown, 0.15)))

    for answer in range(30):
        is_disturbed = answer // 6 % 2 == 1
        step(1.0, chunk=(0, 256))
        for i in range(127):  # beside short prompts of others at first
            has_prompt = is_disturbed and i < 32
            slowdown = 1.3 if has_prompt else 1.5 if is_disturbed else 1.0
            step(slowdown, chunk=(0, 8) if has_prompt else None, context=257 + i)
        for i in range(40 if is_disturbed else 0):
            step(1.3, chunk=(16 * (i + 20), 32))
    assert min(ratios[1:]) > 0.7
    assert max(ratios[1:]) < 2.0


def test_outliers_move_the_model_little() -> None:
    assert relative_error(refined(1.0, 1000, outlier_every=100), 1.0) < 0.05


def test_held_out_error_is_that_of_the_model_before_it_learned() -> None:
    refiner = refined(1.5, 10)
    untouched = refined(1.5, 9)
    assert refiner.model.linear().tolist() == untouched.model.linear().tolist()
    assert untouched.mean_relative_error == 0.0
    assert refiner.mean_relative_error > 0.01


def test_steps_that_took_no_time_are_ignored() -> None:
    refiner = algorithms.LatencyRefiner(algorithms.LatencyModel("corrected", coefficients(1.0)))
    refiner.observe(random_features(np.random.default_rng(4)), 0.0)
    refiner.observe(algorithms.BatchFeatures(), 1.0)
    assert refiner.num_observed == 0
