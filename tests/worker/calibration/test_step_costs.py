"""What policy ellm's solver is told: measured seconds, of which it says the same as the latency model."""

from __future__ import annotations

import numpy as np
import pytest

from schedcore._core import algorithms
from schedcore.latency.latency_profile import LatencyCoefficients
from worker.calibration.step_costs import step_costs

MEASURED = LatencyCoefficients(
    step_base=0.01, decode_base=0.002, prefill_token=1e-5, decode_seq=3e-5, decode_context=2e-6
)


def seconds(batch_size: int, length: int) -> float:
    """Of one decode each, everything cached."""
    lengths = np.full(batch_size, length, np.int32)
    costs = step_costs(MEASURED, num_layers=12).build()
    num, ratio, found = algorithms.solve_partial_cache(costs, lengths, memory_bytes=1e9, max_seconds=1e9)
    assert (num, ratio) == (batch_size, 0.0)
    return found


def test_a_step_takes_what_was_measured() -> None:
    """But for the matrix work of decodes, which the roofline takes to hide behind the reading of weights."""
    batch = algorithms.LatencyBatch(4096)
    for _ in range(32):
        batch.add_decode(500)
    coefficients = {name: getattr(MEASURED, name) for name in MEASURED.__struct_fields__}
    measured = algorithms.LatencyModel("corrected", algorithms.LatencyCoefficients(**coefficients))
    expected = measured.predict(batch.features) - 32 * MEASURED.prefill_token
    assert seconds(32, 500) == pytest.approx(expected, rel=1e-3)


def test_nothing_measured_is_still_something() -> None:
    assert step_costs(LatencyCoefficients(), num_layers=1).build().flops_per_token > 0
