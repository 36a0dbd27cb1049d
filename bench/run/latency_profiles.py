"""Makes schedcore/profiles/*.json from a table of fitted kernel times: python -m bench.run.latency_profiles TABLE.csv

The table (perf_fit_coefficients.csv of the project's data) holds, per model and device, iteration times as

    T_ms = max(w, c tokens) + a + b decodes + kv (sum of decode contexts) + fl (sum of chunk (context + chunk / 2))

fitted to times composed from published kernel measurements. Our form is another one, so it is fitted to the table's
over the range that the table was fitted on. The hidden cache's re-projection is not in the table: its time is taken as
the same share of a prefill token's time as its share of a token's matrix work.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from schedcore._core import algorithms
from schedcore.latency.calibration import StepSample, calibrate
from schedcore.latency.latency_profile import NUM_RATIOS, LatencyProfile, save_profile

PROFILES = Path(__file__).resolve().parents[2] / "schedcore" / "profiles"
NUM_SAMPLES = 2000

SOURCE = (
    "Fitted to T_ms = max(w, c tokens) + ... of perf_fit_coefficients.csv, itself fitted to times composed from "
    "published kernel tables: linear layers and all-reduce from microsoft/vidur (MIT), attention from the AIC tables, "
    "A100 prefill attention from vidur's chunk x context grid."
)
LIMITS = (
    "Composed kernel times, not end-to-end measurements: sampling, lm_head, launch and CPU scheduling are not "
    "included. Range: 0-256 decodes, contexts 64-4096, prefill chunks up to 2048 tokens behind up to 4096. `error` is "
    "against the table's form; the table's own mean error against the composed times is {source_error:.1f} %. Time "
    "per hidden-cached token is computed from shapes, not measured."
)
ERROR_SOURCE = (
    "The table's own errors against the composed times: {mean:.2f} % on average, {p95:.2f} % at the 95th percentile of "
    "their size. Assumed: as often too long as too short, and the generalized normal distribution with these two "
    "figures (exponent {exponent:.2f}; 2: normal, 1: Laplace), cut at one in 2,000 to either side. What a real engine "
    "adds, launches, sampling, other work on the host, is in no table."
)
CUT = 5e-4


@dataclass(frozen=True)
class Shape:
    hidden_size: int
    d_kv: int  # num_kv_heads * head_dim
    intermediate_size: int

    @property
    def projection_share(self) -> float:
        """Of a layer's matrix work per token, the part that turns X into K and V."""
        projection = 2 * self.hidden_size * self.d_kv
        others = 2 * self.hidden_size**2 + 3 * self.hidden_size * self.intermediate_size
        return projection / (projection + others)


SHAPES = {
    "meta-llama/Llama-2-7b-hf": Shape(4096, 4096, 11008),
    "meta-llama/Llama-2-70b-hf": Shape(8192, 1024, 28672),
    "meta-llama/Meta-Llama-3-8B": Shape(4096, 1024, 14336),
}


def table_seconds(row: Mapping[str, str], f: algorithms.BatchFeatures) -> float:
    w, c, a, b, kv, fl = (
        float(row[f"hinge_{name}"])
        for name in ("w_ms", "c_per_token", "a_ms", "b_per_decode_seq", "kv_per_ctx_token", "fl_per_chunk_x_ctx")
    )
    linear = max(w, c * (f.chunk_tokens + f.num_decodes)) + a
    return (linear + b * f.num_decodes + kv * f.decode_context + fl * f.chunk_pairs / 2) / 1000


def random_features(rng: np.random.Generator) -> algorithms.BatchFeatures:
    """Decode only, prefill only and mixed in equal parts, over the table's range."""
    batch = algorithms.LatencyBatch(8192)
    kind = rng.integers(3)
    if kind != 0:
        parts = rng.multinomial(rng.integers(16, 2049), np.ones(3) / 3)[: rng.integers(1, 4)]
        for tokens in parts[parts > 0]:
            batch.add_chunk(int(rng.integers(0, 4097)) if rng.random() < 0.5 else 0, int(tokens))
    if kind != 1:
        mean = rng.integers(64, 4097)
        for context in rng.uniform(0.5, 1.5, rng.integers(1, 257)) * mean:
            batch.add_decode(int(context))
    return batch.features


class GeneralizedNormal:
    """Its density falls as exp(-|x / scale|^exponent), both found from the mean of |x| and its 95th percentile."""

    def __init__(self, mean: float, p95: float) -> None:
        self._x = np.linspace(0, 60, 600_001)
        low, high = 0.4, 8.0  # p95 / mean falls with the exponent
        for _ in range(60):
            self.exponent = (low + high) / 2
            self._share = self._shares()
            of_mean, of_p95 = self._mean(), self._quantile(0.95)
            low, high = (self.exponent, high) if of_p95 / of_mean > p95 / mean else (low, self.exponent)
        self.scale = mean / of_mean

    def quantile(self, q: float) -> float:
        return math.copysign(self.scale * self._quantile(abs(2 * q - 1)), q - 0.5)

    def _shares(self) -> npt.NDArray[np.float64]:
        """Of |x| / scale that are no larger than self._x."""
        below = np.cumsum(np.exp(-(self._x**self.exponent)))
        shares: npt.NDArray[np.float64] = below / below[-1]
        return shares

    def _mean(self) -> float:
        density = np.exp(-(self._x**self.exponent))
        return float((density * self._x).sum() / density.sum())

    def _quantile(self, q: float) -> float:
        return float(np.interp(q, self._share, self._x))


def published_errors(row: Mapping[str, str]) -> tuple[tuple[float, ...], str]:
    """Quantiles of true over predicted times, and how they were made."""
    mean, p95 = float(row["hinge_mape_pct"]), float(row["hinge_p95_ape_pct"])
    errors = GeneralizedNormal(mean / 100, p95 / 100)
    places = np.clip(np.linspace(0, 1, NUM_RATIOS), CUT, 1 - CUT)
    ratios = tuple(round(1 / (1 + errors.quantile(float(q))), 5) for q in places[::-1])
    return ratios, ERROR_SOURCE.format(mean=mean, p95=p95, exponent=errors.exponent)


def make_profile(row: Mapping[str, str]) -> LatencyProfile:
    rng = np.random.default_rng(0)
    features = [random_features(rng) for _ in range(NUM_SAMPLES)]
    fitted = calibrate([StepSample(f, table_seconds(row, f)) for f in features], "corrected")
    coefficients = msgspec.structs.replace(
        fitted.coefficients,
        hidden_token=SHAPES[row["model"]].projection_share * fitted.coefficients.prefill_token,
    )
    error_ratios, error_source = published_errors(row)
    return LatencyProfile(
        model=row["model"],
        device=row["gpu"].upper(),
        num_devices=int(row["tp"]),
        coefficients=coefficients,
        error=fitted.held_out_error,
        error_ratios=error_ratios,
        error_source=error_source,
        source=SOURCE,
        limits=LIMITS.format(source_error=float(row["hinge_mape_pct"])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--out", type=Path, default=PROFILES)
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    for row in csv.DictReader(args.table.open()):
        profile = make_profile(row)
        name = f"{row['model'].split('/')[1]}_{row['gpu']}_tp{row['tp']}".lower()
        save_profile(profile, args.out / f"{name}.json")
        print(f"{name:32} mean error {100 * profile.error.mean:.2f} %, 95th percentile {100 * profile.error.p95:.2f} %")


if __name__ == "__main__":
    main()
