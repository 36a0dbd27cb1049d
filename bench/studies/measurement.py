"""What the studies keep of a simulated run, and of the same run under several seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schedcore._core import SimulatedOutcome
from schedcore.api.types import RequestClass
from schedcore.simulation.report import (
    ClassReport,
    Distribution,
    is_decided,
    make_report,
    time_per_output_token,
    ttft_attained,
)
from schedcore.simulation.simulator import SimulationResult

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Of one run; docs/metrics.md defines the terms. NaN where nothing was measured."""

    cost_model: str
    attainment: float  # online: all targets that they have, ITL and TPOT at P99
    ttft_attainment: float
    itl_attainment: float
    tpot_attainment: float  # TTFT in time, and the mean gap of the request no longer than the TPOT or ITL target
    strict_attainment: float  # TTFT in time, and no gap above it
    goodput: float  # online requests per second that attain all
    tpot_goodput: float  # that attain TTFT and TPOT
    ttft_mean_s: float
    ttft_p99_s: float
    tpot_mean_ms: float
    itl_p99_ms: float
    online_tokens_per_s: float  # output
    online_cached: float  # share of prompt tokens
    longest_first_s: float  # online: the longest wait for a first token, also of those that never got one
    longest_gap_s: float  # online: between two tokens of a request, also the gap that the end of the run cut off
    offline_requests_per_s: float
    offline_tokens_per_s: float  # prompt and output tokens of those that finished
    offline_cached: float
    num_preemptions: int
    num_refused: int
    mean_seqs: float
    busy: float
    is_offline_left: bool  # the pool did not run dry


def measure(result: SimulationResult) -> Measurement:
    report = make_report(result)
    of_class = {c.request_class: c for c in report.classes}
    online, offline = of_class.get("online"), of_class.get("offline")
    tpot_attainment = share_attained(result, time_per_output_token(result))
    return Measurement(
        cost_model=report.cost_model,
        attainment=value(online, lambda c: c.slo_attainment_ratio),
        ttft_attainment=value(online, lambda c: c.ttft_attainment_ratio),
        itl_attainment=value(online, lambda c: c.itl_attainment_ratio),
        tpot_attainment=tpot_attainment,
        strict_attainment=share_attained(result, result.records.max_itl_s),
        goodput=value(online, lambda c: c.goodput),
        tpot_goodput=tpot_attainment * num_decided_online(result) / report.duration_s,
        ttft_mean_s=value(online, lambda c: of(c.ttft_ms, "mean") / 1000),
        ttft_p99_s=value(online, lambda c: of(c.ttft_ms, "p99") / 1000),
        tpot_mean_ms=value(online, lambda c: of(c.tpot_ms, "mean")),
        itl_p99_ms=value(online, lambda c: of(c.itl_ms, "p99")),
        online_tokens_per_s=value(online, lambda c: c.output_tokens_per_second),
        online_cached=value(online, lambda c: c.cached_prompt_ratio),
        longest_first_s=longest_first_s(result),
        longest_gap_s=longest_gap_s(result),
        offline_requests_per_s=value(offline, lambda c: c.requests_per_second),
        offline_tokens_per_s=value(offline, lambda c: c.prompt_tokens_per_second + c.output_tokens_per_second),
        offline_cached=value(offline, lambda c: c.cached_prompt_ratio),
        num_preemptions=report.num_preemptions,
        num_refused=sum(c.num_refused for c in report.classes),
        mean_seqs=report.mean_seqs,
        busy=report.busy_ratio,
        is_offline_left=offline is None or offline.num_pending > 0,
    )


def value(report: ClassReport | None, get: Callable[[ClassReport], float | None]) -> float:
    found = None if report is None else get(report)
    return float("nan") if found is None else found


def of(distribution: Distribution | None, percentile: str) -> float:
    return float("nan") if distribution is None else float(getattr(distribution, percentile))


def share_attained(result: SimulationResult, gap_s: Float64) -> float:
    """Of online requests: TTFT in time, and `gap_s` no longer than the ITL target. NaN if there are none.

    With the mean gap it is Echo's and eLLM's reading of a target.
    """
    decided = (result.workload.request_class == RequestClass.ONLINE) & is_decided(result)
    if not decided.any():
        return float("nan")
    finished = result.records.outcome == SimulatedOutcome.FINISHED
    target_ms = np.minimum(result.workload.itl_target_ms, result.workload.tpot_target_ms)
    in_time = np.nan_to_num(gap_s, nan=0.0) <= target_ms / 1000
    return float((finished & ttft_attained(result) & in_time)[decided].mean())


def num_decided_online(result: SimulationResult) -> int:
    return int(((result.workload.request_class == RequestClass.ONLINE) & is_decided(result)).sum())


def longest_first_s(result: SimulationResult) -> float:
    records = result.records
    waited = (result.workload.request_class == RequestClass.ONLINE) & np.isfinite(records.arrival_s)
    waited &= np.isfinite(records.first_token_s) | (records.outcome == SimulatedOutcome.PENDING)
    until = np.where(np.isnan(records.first_token_s), result.end_s, records.first_token_s)
    return float((until - records.arrival_s)[waited].max(initial=0.0))


def longest_gap_s(result: SimulationResult) -> float:
    records = result.records
    is_online = result.workload.request_class == RequestClass.ONLINE
    cut_off = is_online & (records.outcome == SimulatedOutcome.PENDING) & np.isfinite(records.last_token_s)
    open_s = (result.end_s - records.last_token_s)[cut_off].max(initial=0.0)
    return float(max(records.max_itl_s[is_online].max(initial=0.0), open_s))


def token_gaps(result: SimulationResult) -> tuple[npt.NDArray[np.uint32], Float64]:
    """Of every two tokens of a request in a row: the request, and the seconds between them. Times must be kept."""
    order = np.argsort(result.token_request, kind="stable")  # tokens stand in order of time
    request, time_s = result.token_request[order], result.token_time_s[order]
    is_gap = request[1:] == request[:-1]
    return request[1:][is_gap], np.diff(time_s)[is_gap]


@dataclass(frozen=True, slots=True)
class Spread:
    """A number over several seeds: mean and standard deviation."""

    mean: float
    deviation: float


def spread(runs: Sequence[Measurement], get: Callable[[Measurement], float]) -> Spread:
    values = np.array([get(run) for run in runs], float)
    deviation = float(values.std(ddof=1)) if values.size > 1 else 0.0
    return Spread(float(values.mean()), deviation)


def longest_waits(runs: Sequence[Measurement]) -> tuple[float, float]:
    """For a first token and between tokens, over all runs."""
    return max(run.longest_first_s for run in runs), max(run.longest_gap_s for run in runs)
