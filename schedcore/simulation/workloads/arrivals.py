"""When requests arrive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

SYNTAX = "poisson:RATE, gamma:RATE:cvCV, uniform:RATE or batch"


@dataclass(frozen=True, slots=True)
class ArrivalProcess:
    """A renewal process: independent gamma distributed gaps of mean 1 / rate.

    cv is their coefficient of variation: 1 is a Poisson process, more is burstier, 0 is a metronome.
    """

    rate: float  # requests per second; infinity: all at once
    cv: float = 1.0

    def __post_init__(self) -> None:
        if not (self.rate > 0 and 0 <= self.cv < float("inf")):
            raise ValueError(f"rate must be positive and cv not negative, not {self.rate:g} and {self.cv:g}")

    @classmethod
    def parse(cls, text: str) -> ArrivalProcess:
        """`poisson:3`, `gamma:3:cv10`, `uniform:3`, `batch`. Raises ValueError."""
        kind, *parameters = text.split(":")
        try:
            if kind == "batch" and not parameters:
                return cls(float("inf"), 0.0)
            if kind in ("poisson", "uniform") and len(parameters) == 1:
                return cls(float(parameters[0]), 1.0 if kind == "poisson" else 0.0)
            if kind == "gamma" and len(parameters) == 2 and parameters[1].startswith("cv"):
                return cls(float(parameters[0]), float(parameters[1][2:]))
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None
        raise ValueError(f"{text!r} is no arrival process such as {SYNTAX}")

    def times(self, num_requests: int, seed: int) -> Float64:
        """Seconds from the start, ascending; the first request arrives after the first gap."""
        if self.rate == float("inf"):
            return np.zeros(num_requests)
        if self.cv == 0:
            return np.arange(1, num_requests + 1) / self.rate
        shape = self.cv**-2
        gaps = np.random.default_rng(seed).gamma(shape, 1 / (self.rate * shape), num_requests)
        return np.cumsum(gaps)

    def num_in(self, duration_s: float) -> int:
        """How many requests arrive in that time, on average; at least one."""
        return max(1, round(self.rate * duration_s))
