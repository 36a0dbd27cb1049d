"""Arrival processes of the open loop, against the moments that define them."""

from __future__ import annotations

import numpy as np
import pytest
from arrivals import gamma_arrivals


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_the_asked_mean_and_variation(cv: float) -> None:
    gaps = np.diff([0.0, *gamma_arrivals(200_000, rate=4.0, cv=cv)])
    assert gaps.mean() == pytest.approx(0.25, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
    assert gaps.min() >= 0


def test_without_variation_arrivals_are_a_metronome() -> None:
    assert gamma_arrivals(3, rate=2.0, cv=0.0) == [0.5, 1.0, 1.5]


def test_arrivals_repeat_with_their_seed() -> None:
    assert gamma_arrivals(10, 1.0, seed=7) == gamma_arrivals(10, 1.0, seed=7)
    assert gamma_arrivals(10, 1.0, seed=7) != gamma_arrivals(10, 1.0, seed=8)


@pytest.mark.parametrize(("rate", "cv"), [(0.0, 1.0), (-1.0, 1.0), (1.0, -0.1)])
def test_impossible_processes_are_refused(rate: float, cv: float) -> None:
    with pytest.raises(ValueError, match="rate must be positive"):
        gamma_arrivals(1, rate, cv)
