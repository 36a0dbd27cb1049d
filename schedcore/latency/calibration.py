"""Fits the latency model's coefficients to measured steps: non-negative least squares on relative errors.

The model is linear but for four choices: which chunks are at the prefill floor, whether prefill or decode is the longer
part of a mixed step, the overlap, and which contexts are near. The first two follow from the coefficients, so
the fit alternates between coefficients and choices until the choices stand; the overlap is searched on a grid, from
several starting points, and then what makes contexts near.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from schedcore._core import algorithms
from schedcore.latency.latency_profile import ErrorStatistics, LatencyCoefficients, core_model, error_statistics

Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

LINEAR = tuple(
    name for name in LatencyCoefficients.__struct_fields__ if name not in ("overlap", "near_context", "near_evicted")
)
FEATURES = (
    "num_chunks",
    "chunk_tokens",
    "chunk_pairs",
    "chunk_squares",
    "chunk_context",
    "num_decodes",
    "decode_context",
    "max_context",
    "hidden_tokens",
)
MAX_ROUNDS = 30
FLOOR_STARTS = (0.0, 0.15, 0.4)  # share of the samples, smallest chunks first, that start at the prefill floor
NEAR_SHARES = (0.15, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85)  # of the steps with decodes, whose contexts are all near
NEAR_ROUNDS = 3  # of the search for that sum, each between the neighbours of the best so far
NEAR_EVICTED = (0.0, 8.0, 16.0, 32.0, 64.0)
NEAR_GAIN = 0.98  # of the error, which a bend in the cost of contexts must bring it down to


@dataclass(frozen=True, slots=True)
class StepSample:
    """One measured step."""

    features: algorithms.BatchFeatures
    seconds: float  # > 0


@dataclass(frozen=True, slots=True)
class Calibration:
    form: str
    coefficients: LatencyCoefficients
    train_error: ErrorStatistics
    held_out_error: ErrorStatistics
    held_out: tuple[int, ...]  # places of those samples that only test the fit


def calibrate(samples: Sequence[StepSample], form: str, held_out_share: float = 0.2, seed: int = 0) -> Calibration:
    """Fits on a random part of the samples and tests on the rest. Raises ValueError for fewer than 20 samples."""
    if len(samples) < 20:
        raise ValueError(f"calibration needs at least 20 samples, not {len(samples)}")
    order = np.random.default_rng(seed).permutation(len(samples))
    num_held_out = max(1, round(held_out_share * len(samples)))
    held_out, train = ([samples[i] for i in part] for part in (order[:num_held_out], order[num_held_out:]))
    coefficients = fit(train, form)
    train_error, held_out_error = (evaluate(part, form, coefficients) for part in (train, held_out))
    return Calibration(form, coefficients, train_error, held_out_error, tuple(order[:num_held_out].tolist()))


def evaluate(samples: Sequence[StepSample], form: str, coefficients: LatencyCoefficients) -> ErrorStatistics:
    model = core_model(form, coefficients)
    return error_statistics([model.predict(s.features) for s in samples], [s.seconds for s in samples])


def fit(samples: Sequence[StepSample], form: str) -> LatencyCoefficients:
    """The coefficients with the least mean relative error that the search finds."""
    steps = StepColumns.of(samples, form)
    steps, coarse = _bent(steps, _best_of(steps, np.linspace(0, 1, 11)))
    best = min(coarse, _best_of(steps, np.clip(coarse.overlap + np.linspace(-0.09, 0.09, 7), 0, 1)), key=_error)
    linear = dict(zip(LINEAR, best.linear.tolist(), strict=True))
    is_bent = linear["decode_far_context"] > 0
    near_context, near_evicted = (steps.near_context, steps.near_evicted) if is_bent else (0.0, 0.0)
    overlap = float(best.overlap)
    return LatencyCoefficients(**linear, overlap=overlap, near_context=near_context, near_evicted=near_evicted)


@dataclass(frozen=True, slots=True)
class _Fit:
    linear: Float64  # [len(LINEAR)]
    overlap: float
    error: float


def _error(fitted: _Fit) -> float:
    return fitted.error


def _bent(steps: StepColumns, straight: _Fit) -> tuple[StepColumns, _Fit]:
    """With the cost of contexts bent where that helps most, if it does."""
    contexts = steps.decode[steps.has_decode, LINEAR.index("decode_context")]
    if steps.is_echo or len(contexts) == 0:
        return steps, straight
    grid, best = np.quantile(contexts, NEAR_SHARES), (steps, straight)
    for _ in range(NEAR_ROUNDS):
        bent = [steps.bent_at(near, evicted) for near in grid.tolist() for evicted in NEAR_EVICTED]
        overlaps = np.unique(np.clip(best[1].overlap + np.array([-0.1, 0.0, 0.1]), 0, 1))
        fits = [(columns, _best_of(columns, overlaps)) for columns in bent]
        best = min((best, *fits), key=lambda pair: pair[1].error)
        place = int(np.argmin([fitted.error for _, fitted in fits])) // len(NEAR_EVICTED)
        grid = np.linspace(grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)], len(grid))
    return best if best[1].error < NEAR_GAIN * straight.error else (steps, straight)


def _best_of(steps: StepColumns, overlaps: Float64) -> _Fit:
    return min((_fit_from(steps, float(o), start) for o in overlaps for start in FLOOR_STARTS), key=_error)


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Samples as columns. T = step + weighted prefill + weighted decode, each part linear in its coefficients."""

    seconds: Float64  # [n]
    is_echo: bool
    has_prefill: Bool  # [n]
    has_decode: Bool  # [n]
    chunk_tokens: Float64  # [n]
    prefill: Float64  # [n, len(LINEAR)] above the floor
    decode: Float64  # [n, len(LINEAR)]
    near_context: float = math.inf  # tokens
    near_evicted: float = 0.0  # tokens per token of a chunk

    def bent_at(self, near_context: float, near_evicted: float) -> StepColumns:
        decode = self.decode.copy()
        contexts = decode[:, LINEAR.index("decode_context")]
        near = np.maximum(0.0, near_context - near_evicted * self.chunk_tokens)
        decode[:, LINEAR.index("decode_far_context")] = np.maximum(0.0, contexts - near)
        return replace(self, decode=decode, near_context=near_context, near_evicted=near_evicted)

    @staticmethod
    def of(samples: Sequence[StepSample], form: str) -> StepColumns:
        f = {name: np.array([getattr(s.features, name) for s in samples]) for name in FEATURES}
        is_echo = form == "echo"
        prefill, decode = (np.zeros((len(samples), len(LINEAR))) for _ in range(2))
        has_prefill, has_decodes = f["num_chunks"] > 0, f["num_decodes"] > 0
        prefill[:, LINEAR.index("prefill_pair")] = f["chunk_squares" if is_echo else "chunk_pairs"]
        prefill[:, LINEAR.index("prefill_token")] = f["chunk_tokens"]
        if not is_echo:
            prefill[:, LINEAR.index("prefill_context")] = f["chunk_context"]
            prefill[:, LINEAR.index("prefill_chunk")] = f["num_chunks"]
        decode[:, LINEAR.index("decode_max_context")] = f["max_context"]
        if is_echo:
            decode[:, LINEAR.index("decode_context")] = f["decode_context"] / np.maximum(f["num_decodes"], 1)
        else:
            decode[:, LINEAR.index("decode_base")] = has_decodes
            decode[:, LINEAR.index("decode_seq")] = f["num_decodes"]
            decode[:, LINEAR.index("decode_context")] = f["decode_context"]
            decode[:, LINEAR.index("hidden_token")] = f["hidden_tokens"]
        has_decode = has_decodes | ((f["hidden_tokens"] > 0) & (not is_echo))
        seconds = np.array([s.seconds for s in samples])
        return StepColumns(seconds, is_echo, has_prefill, has_decode, f["chunk_tokens"], prefill, decode)

    def rows(self, overlap: float, at_floor: Bool, prefill_is_longer: Bool) -> Float64:
        """[n, len(LINEAR)] whose product with the coefficients is the prediction, under these choices."""
        longer, shorter = overlap if self.is_echo else 1.0, 1.0 - overlap
        is_mixed = self.has_prefill & self.has_decode
        prefill_weight = np.where(is_mixed, np.where(prefill_is_longer, longer, shorter), 1.0)
        decode_weight = np.where(is_mixed, np.where(prefill_is_longer, shorter, longer), 1.0)
        prefill = np.where(at_floor[:, None], 0.0, self.prefill)
        prefill[:, LINEAR.index("prefill_floor")] = at_floor
        rows = prefill_weight[:, None] * prefill + decode_weight[:, None] * self.decode
        rows[:, LINEAR.index("step_base")] = 0.0 if self.is_echo else 1.0
        return rows

    def choices(self, linear: Float64) -> tuple[Bool, Bool]:
        floor, above = linear[LINEAR.index("prefill_floor")], self.prefill @ linear
        return self.has_prefill & (above < floor), np.maximum(above, floor) >= self.decode @ linear


def _fit_from(steps: StepColumns, overlap: float, share_at_floor: float) -> _Fit:
    threshold = np.quantile(steps.chunk_tokens, share_at_floor) if share_at_floor > 0 else -1.0
    at_floor = steps.has_prefill & (steps.chunk_tokens <= threshold)
    prefill_is_longer = steps.chunk_tokens >= np.median(steps.chunk_tokens)
    best = _Fit(np.zeros(len(LINEAR)), overlap, np.inf)
    for _ in range(MAX_ROUNDS):
        rows = steps.rows(overlap, at_floor, prefill_is_longer) / steps.seconds[:, None]
        linear = nnls(rows, np.ones(len(rows)))
        choices = steps.choices(linear)
        error = float(np.mean(np.abs(steps.rows(overlap, *choices) @ linear / steps.seconds - 1)))
        if error < best.error:
            best = _Fit(linear, overlap, error)
        if np.array_equal(choices[0], at_floor) and np.array_equal(choices[1], prefill_is_longer):
            break
        at_floor, prefill_is_longer = choices
    return best


def nnls(a: Float64, b: Float64) -> Float64:
    """x >= 0 that minimises |a x - b| (Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23).

    a: [m, n], b: [m]. Columns are scaled to length one first: they differ by ten orders of magnitude here.
    """
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0] = 1.0
    a = a / scale
    x = np.zeros(a.shape[1])
    is_free = np.zeros(a.shape[1], bool)
    tolerance = 1e-12 * max(1.0, float(np.linalg.norm(b)))
    for _ in range(3 * a.shape[1]):
        gradient = np.where(is_free, -np.inf, a.T @ (b - a @ x))
        if gradient.max(initial=-np.inf) <= tolerance:
            break
        is_free[np.argmax(gradient)] = True
        x, is_free = _solve_free(a, b, x, is_free)
    solution: Float64 = x / scale
    return solution


def _solve_free(a: Float64, b: Float64, x: Float64, is_free: Bool) -> tuple[Float64, Bool]:
    """Least squares over the free variables; on the way there, those that would turn negative are fixed at 0."""
    while True:
        target = np.zeros_like(x)
        target[is_free] = np.linalg.lstsq(a[:, is_free], b, rcond=None)[0]
        blocked = is_free & (target <= 0)
        if not blocked.any():
            return target, is_free
        step = np.min(x[blocked] / (x[blocked] - target[blocked]))
        x = x + step * (target - x)
        is_free = is_free & (x > 1e-15)
        x = np.where(is_free, x, 0.0)
