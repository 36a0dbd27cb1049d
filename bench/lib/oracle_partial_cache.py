"""Oracles for the b/r solver: a dense grid, and the paper's way, SLSQP over continuous b and r from many starts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from schedcore._core import algorithms

Float64 = npt.NDArray[np.float64]
Numbers = Float64 | np.float64


@dataclass(frozen=True)
class Case:
    form: str
    costs: dict[str, float]
    lengths: npt.NDArray[np.int32]
    memory_bytes: float
    max_seconds: float

    def core_costs(self) -> algorithms.StepCosts:
        return algorithms.StepCosts(self.form, **self.costs)

    def solve(self) -> tuple[int, float, float]:
        return algorithms.solve_partial_cache(self.core_costs(), self.lengths, self.memory_bytes, self.max_seconds)

    def sums(self, b: Numbers) -> tuple[Float64, Float64]:
        """Sums of lengths and of squared lengths of the first b requests; between integers, straight lines."""
        counts, first, second = self.prefix_sums
        return np.interp(b, counts, first), np.interp(b, counts, second)

    @cached_property
    def prefix_sums(self) -> tuple[Float64, Float64, Float64]:
        lengths = self.lengths.astype(float)
        counts = np.arange(len(lengths) + 1, dtype=float)
        return counts, np.concatenate([[0], np.cumsum(lengths)]), np.concatenate([[0], np.cumsum(lengths**2)])

    def seconds(self, b: Numbers, r: Numbers) -> Float64:
        s1, s2 = self.sums(b)
        c = self.costs
        flops = [(b + r * s1) * c["flops_per_token"]]
        if self.form == "flops":
            flops += [(s1 + b + r**2 * s2) * c["flops_per_pair"], (s1 + r * s1) * c["flops_per_logit"]]
            return np.asarray(sum(flops) / c["flops_per_second"])
        flops += [(s1 + b + r**2 * s2 / 2) * c["flops_per_pair"], b * c["flops_per_logit"]]
        moved = [c["weight_bytes"], (1 + r) * s1 * c["kv_bytes_per_token"], c["head_bytes"]]
        parts = zip(flops, moved, strict=True)
        return np.asarray(sum(np.maximum(f / c["flops_per_second"], m / c["bytes_per_second"]) for f, m in parts))

    def memory(self, b: Numbers, r: Numbers) -> Float64:
        s1, _ = self.sums(b)
        return s1 * ((1 - r) * self.costs["kv_bytes_per_token"] + r * self.costs["workspace_bytes_per_token"])

    def is_feasible(self, b: Numbers, r: Numbers) -> npt.NDArray[np.bool_]:
        fits = self.memory(b, r) <= self.memory_bytes * (1 + 1e-9)
        return fits & (self.seconds(b, r) <= self.max_seconds * (1 + 1e-9))


def random_case(rng: np.random.Generator, max_requests: int = 64) -> Case:
    """A model between 0.5B and 30B on a device between a CPU and an H100, memory and time binding or not."""
    h, layers, vocabulary = (
        128 * int(rng.integers(4, 60)),
        int(rng.integers(12, 60)),
        int(rng.integers(30_000, 150_000)),
    )
    kv_share = float(rng.choice([1.0, 0.25, 0.125]))
    rate, bandwidth = 10 ** rng.uniform(11, 14.7), 10 ** rng.uniform(10.3, 12.5)
    lengths = np.minimum(rng.lognormal(rng.uniform(4, 8), 1.0, rng.integers(1, max_requests + 1)) + 1, 30_000)
    costs = {
        "flops_per_token": 24.0 * h**2 * layers,
        "flops_per_pair": 4.0 * h * layers,
        "flops_per_logit": 2.0 * h * vocabulary,
        "flops_per_second": rate,
        "weight_bytes": 24.0 * h**2 * layers,
        "head_bytes": 2.0 * h * vocabulary,
        "kv_bytes_per_token": 4.0 * layers * h * kv_share,
        "workspace_bytes_per_token": float(rng.choice([0.0, 40.0 * h * kv_share])),
        "bytes_per_second": bandwidth,
    }
    case = Case(str(rng.choice(["flops", "roofline"])), costs, lengths.astype(np.int32), 0.0, 0.0)
    everything = float(case.memory(np.float64(len(lengths)), np.float64(0)))
    slowest = float(case.seconds(np.float64(len(lengths)), np.float64(0.5)))
    memory, target = everything * rng.uniform(0.05, 1.2), slowest * rng.uniform(0.2, 2)
    return Case(case.form, costs, case.lengths, memory, target)


def best_on_grid(case: Case, num_ratios: int = 201) -> float:
    """The largest b / T on the grid; 0 if no point of it is feasible."""
    b, r = np.meshgrid(np.arange(1, len(case.lengths) + 1, dtype=float), np.linspace(0, 1, num_ratios), indexing="ij")
    return float(np.max(np.where(case.is_feasible(b, r), b / case.seconds(b, r), 0.0)))


def best_by_slsqp(case: Case, num_starts: int = 20, seed: int = 0) -> float:
    """The largest b / T that SLSQP's answers come to once b is an integer; 0 if none is feasible then."""
    rng = np.random.default_rng(seed)
    n = len(case.lengths)
    scale = float(case.seconds(np.float64(n), np.float64(0)))
    constraints = [
        {"type": "ineq", "fun": lambda x: 1 - float(case.memory(x[0], x[1])) / case.memory_bytes},
        {"type": "ineq", "fun": lambda x: 1 - float(case.seconds(x[0], x[1])) / case.max_seconds},
    ]
    best = 0.0
    for _ in range(num_starts):
        start = [rng.uniform(1, n), rng.uniform(0, 1)]
        answer = minimize(
            lambda x: float(case.seconds(x[0], x[1])) / x[0] / scale * n,
            start,
            method="SLSQP",
            bounds=[(1, n), (0, 1)],
            constraints=constraints,
        )
        b, r = np.clip(answer.x[0], 1, n), np.clip(answer.x[1], 0, 1)
        for rounded in (np.floor(b), np.ceil(b)):
            if case.is_feasible(rounded, r):
                best = max(best, float(rounded / case.seconds(rounded, r)))
    return best
