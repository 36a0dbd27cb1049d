"""What a simulated run says: docs/metrics.md, computed."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from schedcore._core import SimulatedOutcome, simulation
from schedcore.api.types import RequestClass
from schedcore.simulation.simulator import SimulationResult

Bool = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

MAX_VIOLATION_RATIO = 0.01  # of a request's gaps: its P99 ITL meets the target; of its tokens after the first as well


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
    num_requests: int  # that arrived
    num_finished: int
    num_refused: int
    num_pending: int  # cut off by the horizon
    ttft_ms: Distribution | None
    itl_ms: Distribution | None
    tpot_ms: Distribution | None
    e2e_ms: Distribution | None
    queue_ms: Distribution | None
    slo_attainment_ratio: float | None
    ttft_attainment_ratio: float | None
    itl_attainment_ratio: float | None
    tpot_attainment_ratio: float | None
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
    duration = _end_s(result) - float(np.nanmin(records.arrival_s))
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


def _end_s(result: SimulationResult) -> float:
    if result.horizon_s is not None:
        return max(result.horizon_s, result.end_s)
    has_finished = bool(np.any(result.records.outcome == SimulatedOutcome.FINISHED))
    return float(np.nanmax(result.records.last_token_s)) if has_finished else result.end_s


def _class_report(result: SimulationResult, request_class: RequestClass, duration: float) -> ClassReport:
    records, workload = result.records, result.workload
    mine = (workload.request_class == request_class) & np.isfinite(records.arrival_s)
    finished = mine & (records.outcome == SimulatedOutcome.FINISHED)
    pending = mine & (records.outcome == SimulatedOutcome.PENDING)
    decided = mine & is_decided(result)
    num_decided = int(decided.sum())
    ttft, itl, tpot = ttft_attained(result), itl_attained(result), tpot_attained(result)
    has_ttft, has_itl, has_tpot = (
        bool(np.isfinite(target[mine]).any())
        for target in (workload.ttft_target_ms, workload.itl_target_ms, workload.tpot_target_ms)
    )
    has_target = has_ttft or has_itl or has_tpot
    attained = int((decided & slo_attained(result)).sum())
    num_outputs = int(records.num_output_tokens[finished].sum())
    num_prompts = int(workload.input_tokens[finished].sum())

    def ratio(count: int, total: int) -> float:
        return count / total if total else 0.0

    def rate(count: int) -> float:
        return count / duration if duration > 0 else 0.0

    return ClassReport(
        request_class=request_class.name.lower(),
        num_requests=int(mine.sum()),
        num_finished=int(finished.sum()),
        num_refused=int(mine.sum() - finished.sum() - pending.sum()),
        num_pending=int(pending.sum()),
        ttft_ms=distribution_ms((records.first_token_s - records.arrival_s)[finished]),
        itl_ms=itl_distribution_ms(result.itl_histograms[request_class], _max_itl(result, mine)),
        tpot_ms=distribution_ms(time_per_output_token(result)[finished & (records.num_output_tokens > 1)]),
        e2e_ms=distribution_ms((records.last_token_s - records.arrival_s)[finished]),
        queue_ms=distribution_ms((records.scheduled_s - records.arrival_s)[finished]),
        slo_attainment_ratio=ratio(attained, num_decided) if has_target else None,
        ttft_attainment_ratio=ratio(int((decided & ttft).sum()), num_decided) if has_ttft else None,
        itl_attainment_ratio=ratio(int((decided & itl).sum()), num_decided) if has_itl else None,
        tpot_attainment_ratio=ratio(int((decided & tpot).sum()), num_decided) if has_tpot else None,
        on_time_token_ratio=(
            1 - ratio(int(num_late_tokens(result)[finished].sum()), num_outputs) if has_ttft or has_tpot else None
        ),
        goodput=rate(attained) if has_target else None,
        requests_per_second=rate(int(finished.sum())),
        prompt_tokens_per_second=rate(num_prompts),
        output_tokens_per_second=rate(num_outputs),
        cached_prompt_ratio=ratio(int(records.num_cached_tokens[finished].sum()), num_prompts),
        num_preemptions=int(records.num_preemptions[mine].sum()),
    )


def is_decided(result: SimulationResult) -> Bool:
    """Per request: it has arrived, and has ended or missed a target; else the horizon left its attainment open."""
    records = result.records
    first_token_s = np.where(np.isnan(records.first_token_s), result.end_s, records.first_token_s)
    is_late = first_token_s - records.arrival_s > result.workload.ttft_target_ms / 1000
    most_gaps = np.maximum(result.workload.output_tokens - 1, 0)
    has_missed = is_late | (records.num_itl_violations > max_violations(most_gaps))
    has_missed |= records.num_tpot_violations > max_violations(most_gaps)
    return np.asarray(np.isfinite(records.arrival_s) & ((records.outcome != SimulatedOutcome.PENDING) | has_missed))


def ttft_attained(result: SimulationResult) -> Bool:
    """Per request; a refused one attains nothing."""
    records = result.records
    met = records.first_token_s - records.arrival_s <= result.workload.ttft_target_ms / 1000
    return np.asarray(met)


def itl_attained(result: SimulationResult) -> Bool:
    """Per request: at most one in a hundred of its gaps, rounded down, exceeds the target."""
    return _has_few(result, result.records.num_itl_violations)


def tpot_attained(result: SimulationResult) -> Bool:
    """Per request: at most one in a hundred of its tokens after the first, rounded down, comes after its deadline."""
    return _has_few(result, result.records.num_tpot_violations)


def slo_attained(result: SimulationResult) -> Bool:
    """Per request: all targets that it has."""
    return ttft_attained(result) & itl_attained(result) & tpot_attained(result)


def num_late_tokens(result: SimulationResult) -> Int32:
    """Per request: tokens after their cumulative deadline, the first one's being its TTFT target."""
    records = result.records
    is_first_late = records.first_token_s - records.arrival_s > result.workload.ttft_target_ms / 1000
    return np.asarray(records.num_tpot_violations + is_first_late)


def _has_few(result: SimulationResult, num_violations: Int32) -> Bool:
    """Finished, and in at most one of a hundred gaps between tokens."""
    records = result.records
    gaps = np.maximum(records.num_output_tokens - 1, 0)
    is_finished = records.outcome == SimulatedOutcome.FINISHED
    return np.asarray(is_finished & (num_violations <= max_violations(gaps)))


def max_violations(num_gaps: Int32) -> Float64:
    return np.asarray(np.floor(MAX_VIOLATION_RATIO * num_gaps))


def time_per_output_token(result: SimulationResult) -> Float64:
    """Seconds per request; NaN for a request of one token."""
    records = result.records
    gaps = np.where(records.num_output_tokens > 1, records.num_output_tokens - 1.0, np.nan)
    return np.asarray((records.last_token_s - records.first_token_s) / gaps)


def _max_itl(result: SimulationResult, mine: Bool) -> float:
    return float(result.records.max_itl_s[mine].max(initial=0.0))


def distribution_ms(seconds: Float64) -> Distribution | None:
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
