"""When the requests of an open loop arrive."""

from __future__ import annotations

import numpy as np


def gamma_arrivals(num_requests: int, rate: float, cv: float = 1.0, seed: int = 0) -> list[float]:
    """Arrival times in seconds from the start, ascending; the first request arrives after the first gap.

    Gaps are gamma distributed with mean 1/rate (rate in requests per second) and coefficient of variation `cv`:
    1 is a Poisson process, more is burstier, 0 is a metronome.
    """
    if rate <= 0 or cv < 0:
        raise ValueError(f"rate must be positive and cv not negative, not {rate} and {cv}")
    if cv == 0:
        return [(i + 1) / rate for i in range(num_requests)]
    shape = 1 / cv**2
    gaps = np.random.default_rng(seed).gamma(shape, 1 / (rate * shape), num_requests)
    return [float(time) for time in np.cumsum(gaps)]
