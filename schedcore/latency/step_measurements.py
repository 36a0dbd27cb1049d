"""What a calibrating worker tells whoever started it, as lines of JSON; and how it becomes a latency profile."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import msgspec
import numpy as np

from schedcore._core import algorithms
from schedcore.latency.calibration import FEATURES, Calibration, StepSample, calibrate
from schedcore.latency.latency_profile import LatencyProfile, core_model, ratio_quantiles

NUM_REPETITIONS = 20  # that stand for what a step takes when it is repeated
QUARTILES_OF_NORMAL = 1.349  # deviations between them
LEAST_REPEATED = 0.5  # of the median
BUSY_NOISE = 0.1  # above it a machine was too busy for a calibration to be trusted


class MeasuredStep(msgspec.Struct, frozen=True):
    """One step shape, measured again and again."""

    features: dict[str, float]  # fields of BatchFeatures
    seconds: float  # from schedule() to commit(), the median
    noise: float  # interquartile range over the median


class StepMeasurements(msgspec.Struct, frozen=True, tag="measurements"):
    model: str
    device: str  # for people
    steps: list[MeasuredStep]
    hidden_token: float  # seconds to project one token to K and V in all layers, by a matrix product alone
    source: str  # how it was measured
    limits: str  # what it says nothing about
    host_bytes_per_second: float = 0.0  # from the host tier to the device; 0: not measured

    def samples(self) -> list[StepSample]:
        return [StepSample(algorithms.BatchFeatures(**step.features), step.seconds) for step in self.steps]

    @property
    def noise(self) -> float:
        """Of a typical step."""
        return float(np.median([step.noise for step in self.steps]))


class MeasuringProgress(msgspec.Struct, frozen=True, tag="progress"):
    done: int
    total: int


class MeasuringFailure(msgspec.Struct, frozen=True, tag="failure"):
    message: str


Message = StepMeasurements | MeasuringProgress | MeasuringFailure


def measured_step(features: algorithms.BatchFeatures, seconds: Sequence[float]) -> MeasuredStep:
    low, median, high = np.percentile(seconds, (25, 50, 75)).tolist()
    return MeasuredStep({name: getattr(features, name) for name in FEATURES}, median, (high - low) / median)


class CalibrationReport(msgspec.Struct, frozen=True):
    """A profile, and what it is worth."""

    profile: LatencyProfile
    corrected: Calibration
    echo: Calibration  # Echo's form fitted to the same steps, for comparison
    noise: float  # StepMeasurements.noise


def error_ratios(steps: Sequence[MeasuredStep], fitted: Calibration) -> tuple[float, ...]:
    """Of a step: its median over the prediction, and what repetitions make of that, taken to be normal."""
    model = core_model(fitted.form, fitted.coefficients)
    deviates = np.array([NormalDist().inv_cdf((k + 0.5) / NUM_REPETITIONS) for k in range(NUM_REPETITIONS)])
    of_steps = [
        step.seconds
        / model.predict(algorithms.BatchFeatures(**step.features))
        * np.maximum(LEAST_REPEATED, 1 + step.noise / QUARTILES_OF_NORMAL * deviates)
        for step in steps
    ]
    return ratio_quantiles(np.concatenate(of_steps))


def calibration_report(measurements: StepMeasurements, seed: int = 0) -> CalibrationReport:
    """Fits both forms to one part of the steps and tests them on the rest. Raises ValueError for fewer than 20."""
    samples = measurements.samples()
    corrected, echo = (calibrate(samples, form, seed=seed) for form in ("corrected", "echo"))
    coefficients = corrected.coefficients
    if coefficients.hidden_token == 0:  # not among the steps, or lost in their noise
        coefficients = msgspec.structs.replace(coefficients, hidden_token=measurements.hidden_token)
    profile = LatencyProfile(
        model=measurements.model,
        device=measurements.device,
        coefficients=coefficients,
        error=corrected.held_out_error,
        error_ratios=error_ratios([measurements.steps[i] for i in corrected.held_out], corrected),
        error_source="Held-out steps of the calibration, each as far as it differed from itself when repeated.",
        source=measurements.source,
        limits=measurements.limits,
        host_bytes_per_second=measurements.host_bytes_per_second,
    )
    return CalibrationReport(profile, corrected, echo, measurements.noise)
