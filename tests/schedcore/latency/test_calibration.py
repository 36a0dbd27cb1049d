"""The fit: NNLS against SciPy, known coefficients found again, and both forms compared on the same steps."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

from schedcore._core import algorithms
from schedcore.latency.calibration import StepColumns, StepSample, calibrate, evaluate, nnls
from schedcore.latency.latency_profile import LatencyCoefficients, core_model

TRUTH = LatencyCoefficients(
    step_base=0.003,
    prefill_floor=0.009,
    prefill_pair=2e-9,
    prefill_token=6e-5,
    prefill_context=4e-7,
    prefill_chunk=3e-4,
    decode_base=0.006,
    decode_seq=4e-5,
    decode_context=3e-7,
    decode_max_context=5e-7,
    decode_far_context=4e-7,
    hidden_token=4e-7,
    overlap=0.3,
    near_context=60_000.0,
    near_evicted=16.0,
)


def random_features(rng: np.random.Generator) -> algorithms.BatchFeatures:
    """Prefill only, decode only or mixed."""
    batch = algorithms.LatencyBatch(8192)
    kind = rng.integers(3)
    if kind != 0:
        for _ in range(rng.integers(1, 4)):
            batch.add_chunk(int(rng.choice([0, 512, 4096])), int(rng.integers(8, 1024)))
    if kind != 1:
        mean = int(rng.integers(64, 4096))
        for context in rng.integers(mean // 2, 2 * mean, rng.integers(1, 128)):
            batch.add_decode(int(context))
        batch.add_hidden(int(rng.choice([0, 0, 20_000])))
    return batch.features


def samples(
    rng: np.random.Generator, n: int, noise: float = 0.0, truth: LatencyCoefficients = TRUTH
) -> list[StepSample]:
    model = core_model("corrected", truth)
    features = [random_features(rng) for _ in range(n)]
    return [StepSample(f, model.predict(f) * float(np.exp(noise * rng.standard_normal()))) for f in features]


@pytest.mark.parametrize("rank", [None, 3])
def test_nnls_equals_scipy(rank: int | None) -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        m, n = int(rng.integers(1, 40)), int(rng.integers(1, 10))
        a = (
            rng.standard_normal((m, n))
            if rank is None
            else rng.standard_normal((m, rank)) @ rng.standard_normal((rank, n))
        )
        a, b = a * 10.0 ** rng.integers(-5, 5, n), rng.standard_normal(m)
        ours = nnls(a, b)
        theirs, residual = scipy.optimize.nnls(a / np.linalg.norm(a, axis=0), b)
        assert (ours >= 0).all()
        assert np.linalg.norm(a @ ours - b) == pytest.approx(residual, abs=1e-9)
        if rank is None and m >= n:
            np.testing.assert_allclose(ours * np.linalg.norm(a, axis=0), theirs, atol=1e-9)


def test_nnls_of_a_negative_target_is_zero() -> None:
    assert nnls(np.eye(3), -np.ones(3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("form", ["corrected", "echo"])
def test_rows_are_the_cores_regressors(form: str) -> None:
    steps = samples(np.random.default_rng(2), 100)
    model, columns = core_model(form, TRUTH), StepColumns.of(steps, form)
    if form == "corrected":
        columns = columns.bent_at(TRUTH.near_context, TRUTH.near_evicted)
    rows = columns.rows(TRUTH.overlap, *columns.choices(model.linear()))
    np.testing.assert_allclose(rows, [model.regressors(step.features) for step in steps])
    assert len({tuple(row != 0) for row in rows}) > 3  # several of the model's cases occurred


def test_known_coefficients_are_found_again() -> None:
    found = calibrate(samples(np.random.default_rng(3), 600), "corrected")
    assert found.held_out_error.mean < 1e-3
    assert found.coefficients.overlap == pytest.approx(TRUTH.overlap, abs=0.05)
    assert found.coefficients.decode_context == pytest.approx(TRUTH.decode_context, rel=0.1)


def test_noise_costs_no_more_than_itself() -> None:
    rng = np.random.default_rng(4)
    found = calibrate(samples(rng, 600, noise=0.03), "corrected")
    assert found.held_out_error.mean < 0.03
    assert evaluate(samples(rng, 300), "corrected", found.coefficients).mean < 0.01


def test_echos_form_is_worse_on_mixed_work() -> None:
    steps = samples(np.random.default_rng(5), 600, noise=0.03)
    corrected, echo = calibrate(steps, "corrected"), calibrate(steps, "echo")
    assert corrected.held_out_error.mean < 0.5 * echo.held_out_error.mean


def test_held_out_steps_are_not_fitted() -> None:
    steps = samples(np.random.default_rng(6), 50)
    found = calibrate(steps, "corrected", held_out_share=0.4)
    assert (found.train_error.num_samples, found.held_out_error.num_samples) == (30, 20)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 20"):
        calibrate(samples(np.random.default_rng(7), 19), "corrected")
