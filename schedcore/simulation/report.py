"""What a simulated run says: docs/metrics.md, computed."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from schedcore._core import simulation
from schedcore.simulation.simulator import Outcome, SimulationResult
from schedcore.types import RequestClass

Bool = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

MAX_VIOLATION_RATIO = 0.01  # of a request's gaps: its P99 ITL meets the target


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles interpolate linearly between samples; those of ITL are within 1 %."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class ClassReport(msgspec.Struct, frozen=True, kw_only=True):
    """One request class. Times in milliseconds; None where nothing was measured or no target set."""

    request_class: str
    num_requests: int
    num_finished: int
    num_refused: int
    ttft_ms: Distribution | None
    itl_ms: Distribution | None
    tpot_ms: Distribution | None
    e2e_ms: Distribution | None
    queue_ms: Distribution | None
    slo_attainment_ratio: float | None
    ttft_attainment_ratio: float | None
    itl_attainment_ratio: float | None
    on_time_token_ratio: float | None
    goodput: float | None  # requests per second
    requests_per_second: float
    prompt_tokens_per_second: float
    output_tokens_per_second: float
    cached_prompt_ratio: float
    num_preemptions: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Every number in it is simulated, with the cost model it names."""

    is_simulated: bool = True
    cost_model: str
    model: str
    policy: str
    workload: str
    num_units: int
    duration_s: float
    busy_ratio: float
    num_steps: int
    mean_step_ms: float
    mean_seqs: float  # per step
    mean_tokens: float  # per step
    num_preemptions: int
    num_evicted_blocks: int
    classes: list[ClassReport]  # those that have requests

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    def of(self, request_class: RequestClass) -> ClassReport:
        """Raises KeyError if no request was of that class."""
        for report in self.classes:
            if report.request_class == request_class.name.lower():
                return report
        raise KeyError(request_class.name.lower())


def make_report(result: SimulationResult) -> Report:
    """Raises ValueError for a workload without requests."""
    records = result.records
    if records.arrival_s.size == 0:
        raise ValueError("the workload has no requests")
    end_s = float(np.nanmax(records.last_token_s)) if np.any(records.outcome == Outcome.FINISHED) else result.end_s
    duration = end_s - float(records.arrival_s.min())
    classes = [c for c in RequestClass if np.any(result.workload.request_class == c)]
    steps = max(result.num_steps, 1)
    return Report(
        cost_model=result.engine.cost.name,
        model=result.engine.model.name,
        policy=result.engine.policy,
        workload=result.workload.source,
        num_units=result.num_units,
        duration_s=duration,
        busy_ratio=result.busy_s / duration if duration > 0 else 0.0,
        num_steps=result.num_steps,
        mean_step_ms=1000 * result.busy_s / steps,
        mean_seqs=result.num_scheduled_seqs / steps,
        mean_tokens=result.num_scheduled_tokens / steps,
        num_preemptions=result.num_preemptions,
        num_evicted_blocks=result.num_evicted_blocks,
        classes=[_class_report(result, c, duration) for c in classes],
    )


def _class_report(result: SimulationResult, request_class: RequestClass, duration: float) -> ClassReport:
    records, workload = result.records, result.workload
    mine = workload.request_class == request_class
    finished = mine & (records.outcome == Outcome.FINISHED)
    num_requests = int(mine.sum())
    ttft, itl = ttft_attained(result), itl_attained(result)
    has_ttft = bool(np.isfinite(workload.ttft_target_ms[mine]).any())
    has_itl = bool(np.isfinite(workload.itl_target_ms[mine]).any())
    attained = int((mine & ttft & itl).sum())
    num_outputs = int(records.num_output_tokens[finished].sum())
    num_prompts = int(workload.input_tokens[finished].sum())

    def ratio(count: int, total: int) -> float:
        return count / total if total else 0.0

    def rate(count: int) -> float:
        return count / duration if duration > 0 else 0.0

    return ClassReport(
        request_class=request_class.name.lower(),
        num_requests=num_requests,
        num_finished=int(finished.sum()),
        num_refused=int(mine.sum() - finished.sum()),
        ttft_ms=_distribution_ms((records.first_token_s - records.arrival_s)[finished]),
        itl_ms=itl_distribution_ms(result.itl_histograms[request_class], _max_itl(result, finished)),
        tpot_ms=_distribution_ms(time_per_output_token(result)[finished & (records.num_output_tokens > 1)]),
        e2e_ms=_distribution_ms((records.last_token_s - records.arrival_s)[finished]),
        queue_ms=_distribution_ms((records.scheduled_s - records.arrival_s)[finished]),
        slo_attainment_ratio=ratio(attained, num_requests) if has_ttft or has_itl else None,
        ttft_attainment_ratio=ratio(int((mine & ttft).sum()), num_requests) if has_ttft else None,
        itl_attainment_ratio=ratio(int((mine & itl).sum()), num_requests) if has_itl else None,
        on_time_token_ratio=(
            1 - ratio(int(records.num_late_tokens[finished].sum()), num_outputs) if has_ttft else None
        ),
        goodput=rate(attained) if has_ttft or has_itl else None,
        requests_per_second=rate(int(finished.sum())),
        prompt_tokens_per_second=rate(num_prompts),
        output_tokens_per_second=rate(num_outputs),
        cached_prompt_ratio=ratio(int(records.num_cached_tokens[finished].sum()), num_prompts),
        num_preemptions=int(records.num_preemptions[mine].sum()),
    )


def ttft_attained(result: SimulationResult) -> Bool:
    """Per request; a refused one attains nothing."""
    records = result.records
    is_finished = records.outcome == Outcome.FINISHED
    met = records.first_token_s - records.arrival_s <= result.workload.ttft_target_ms / 1000
    return np.asarray(is_finished & met)


def itl_attained(result: SimulationResult) -> Bool:
    """Per request: at most one in a hundred of its gaps, rounded down, exceeds the target."""
    records = result.records
    gaps = np.maximum(records.num_output_tokens - 1, 0)
    met = records.num_itl_violations <= np.floor(MAX_VIOLATION_RATIO * gaps)
    return np.asarray((records.outcome == Outcome.FINISHED) & met)


def time_per_output_token(result: SimulationResult) -> Float64:
    """Seconds per request; NaN for a request of one token."""
    records = result.records
    gaps = np.where(records.num_output_tokens > 1, records.num_output_tokens - 1.0, np.nan)
    return np.asarray((records.last_token_s - records.first_token_s) / gaps)


def _max_itl(result: SimulationResult, finished: Bool) -> float:
    return float(result.records.max_itl_s[finished].max(initial=0.0))


def _distribution_ms(seconds: Float64) -> Distribution | None:
    if seconds.size == 0:
        return None
    p50, p90, p95, p99 = (1000 * np.percentile(seconds, (50, 90, 95, 99))).tolist()
    mean, largest = 1000 * float(seconds.mean()), 1000 * float(seconds.max())
    return Distribution(mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, max=largest)


def itl_bins_s(num_bins: int) -> Float64:
    """The middle of each bin, geometrically; zero for the bin of what is too short to matter."""
    middles = simulation.ITL_SMALLEST_S * simulation.ITL_GROWTH ** (np.arange(num_bins) - 0.5)
    middles[0] = 0.0
    return np.asarray(middles)


def itl_distribution_ms(histogram: Int64, max_s: float) -> Distribution | None:
    cumulative = np.cumsum(histogram)
    total = int(cumulative[-1])
    if total == 0:
        return None
    bins = itl_bins_s(histogram.size)
    ranks = np.ceil(np.array([0.50, 0.90, 0.95, 0.99]) * total)
    p50, p90, p95, p99 = (1000 * np.minimum(bins[np.searchsorted(cumulative, ranks)], max_s)).tolist()
    mean = 1000 * float(histogram @ bins) / total
    return Distribution(mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, max=1000 * max_s)
