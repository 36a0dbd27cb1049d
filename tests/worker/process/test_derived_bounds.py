"""Bounds of steps that nobody has told: derived from what the engine knows of step times when it starts."""

from __future__ import annotations

import msgspec
import pytest

from schedcore.api.config import EngineConfig
from schedcore.latency.latency_profile import LatencyCoefficients
from schedcore.record.recipe import Recipe
from worker.process.engine_process import max_offline_step_ms


@pytest.mark.parametrize(("decode_ms", "expected_ms"), [(0.1, 50.0), (2.5, 80.0), (10.0, 100.0)])
def test_a_step_of_offline_work_is_about_as_long_as_one_of_32_decodes(decode_ms: float, expected_ms: float) -> None:
    coefficients = LatencyCoefficients(
        step_base=0.0, prefill_token=1e-4, decode_seq=decode_ms / 1000, decode_context=0.0, overlap=0.0
    )
    latency = {"form": "corrected", "coefficients": Recipe("LatencyCoefficients", msgspec.structs.asdict(coefficients))}
    estimates = Recipe("Estimates", {"latency": Recipe("LatencyModel", latency)})
    assert max_offline_step_ms(EngineConfig(model="m"), estimates) == pytest.approx(expected_ms)
    assert max_offline_step_ms(EngineConfig(model="m", max_offline_step_ms=7), estimates) == 7
