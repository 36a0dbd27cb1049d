"""A long run by intervals: what was offered online and how it fared, and what offline work got done beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schedcore._core import SimulatedOutcome
from schedcore.api.types import RequestClass
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.planning.fleet import Traffic, run_engines
from schedcore.simulation.planning.offline_supply import OfflineSupply, probe_rate, simulate_beside
from schedcore.simulation.planning.peak import work_of
from schedcore.simulation.report import is_decided, itl_attained, slo_attained, tpot_attained, ttft_attained
from schedcore.simulation.simulator import Progress, SimulationResult, simulate

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

HOUR_S = 3600.0
SHORTER_INTERVALS_S = (1800.0, 900.0, 600.0, 300.0, 60.0, 10.0, 1.0)
MIN_INTERVALS = 6


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts by interval. Online requests belong to that in which they arrive, offline ones to that of their end."""

    num_decided: Int64  # online requests whose attainment is known, see docs/metrics.md
    num_attained: Int64
    num_ttft_attained: Int64
    num_itl_attained: Int64
    num_tpot_attained: Int64
    num_offline: Int64  # finished
    offline_prompt_tokens: Int64
    offline_output_tokens: Int64
    offline_cached_tokens: Int64

    @classmethod
    def of(cls, result: SimulationResult, interval_s: float, num_intervals: int) -> Tally:
        records, workload = result.records, result.workload
        is_online = workload.request_class == RequestClass.ONLINE
        decided = is_online & is_decided(result)
        finished = ~is_online & (records.outcome == SimulatedOutcome.FINISHED)
        arrival, end = _intervals(workload.arrival_s, interval_s), _intervals(records.last_token_s, interval_s)

        def arrived(chosen: npt.NDArray[np.bool_]) -> Int64:
            return np.bincount(arrival[chosen], minlength=num_intervals)[:num_intervals]

        def ended(weights: npt.NDArray[np.int32] | None = None) -> Int64:
            chosen = None if weights is None else weights[finished]
            return np.bincount(end[finished], chosen, num_intervals)[:num_intervals].astype(np.int64)

        return cls(
            num_decided=arrived(decided),
            num_attained=arrived(decided & slo_attained(result)),
            num_ttft_attained=arrived(decided & ttft_attained(result)),
            num_itl_attained=arrived(decided & itl_attained(result)),
            num_tpot_attained=arrived(decided & tpot_attained(result)),
            num_offline=ended(),
            offline_prompt_tokens=ended(workload.input_tokens),
            offline_output_tokens=ended(workload.output_tokens),
            offline_cached_tokens=ended(records.num_cached_tokens),
        )


def _intervals(times_s: Float64, interval_s: float) -> Int64:
    return np.nan_to_num(times_s / interval_s, nan=-1.0).astype(np.int64)


def add_tallies(tallies: Sequence[Tally]) -> Tally:
    columns = {f.name: np.sum([getattr(tally, f.name) for tally in tallies], axis=0) for f in fields(Tally)}
    return Tally(**columns)


class IntervalReport(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over all engines. None where nothing was measured."""

    start_s: float
    end_s: float
    online_requests_per_second: float
    online_work_ratio: float  # offered work (peak.py: without the fixed costs of steps) per second of an engine
    online_attainment_ratio: float | None
    offline_requests_per_hour: float
    offline_prompt_tokens_per_second: float
    offline_output_tokens_per_second: float


class DayReport(msgspec.Struct, frozen=True, kw_only=True):
    """Of the whole run, over all engines; what is simulated on some of them is scaled to all."""

    duration_s: float
    num_engines: int
    num_simulated_engines: int
    num_online: int
    online_attainment_ratio: float | None
    ttft_attainment_ratio: float | None
    itl_attainment_ratio: float | None
    tpot_attainment_ratio: float | None
    offline_requests_per_hour: float
    offline_requests_per_hour_and_engine: float
    offline_prompt_tokens_per_second: float
    offline_output_tokens_per_second: float
    offline_tokens_per_second_and_engine: float  # prompt and output
    offline_cached_prompt_ratio: float | None
    busy_ratio: float
    intervals: list[IntervalReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """What a report needs beside the tally."""

    traffic: Traffic
    work_s: Float64  # of its requests, see peak.py
    interval_s: float
    num_engines: int
    num_simulated: int  # of them

    @property
    def duration_s(self) -> float:
        return self.traffic.duration_s

    @property
    def num_intervals(self) -> int:
        return int(np.ceil(self.duration_s / self.interval_s))

    def offered(self, weights: Float64 | None = None) -> npt.NDArray[Any]:
        """By interval: requests, or their weights."""
        last = self.num_intervals - 1
        arrival = np.minimum(_intervals(self.traffic.workload.arrival_s, self.interval_s), last)
        return np.bincount(arrival, weights, self.num_intervals)


def day_report(day: Day, tally: Tally, busy_s: float) -> DayReport:
    """tally, busy_s: sums over the simulated engines."""

    def total(name: str) -> int:
        return int(getattr(tally, name).sum())

    prompts, outputs = total("offline_prompt_tokens"), total("offline_output_tokens")
    engine_s = day.duration_s * day.num_simulated
    per_hour = HOUR_S * total("num_offline") / engine_s
    return DayReport(
        duration_s=day.duration_s,
        num_engines=day.num_engines,
        num_simulated_engines=day.num_simulated,
        num_online=len(day.traffic),
        online_attainment_ratio=_ratio(total("num_attained"), total("num_decided")),
        ttft_attainment_ratio=_ratio(total("num_ttft_attained"), total("num_decided")),
        itl_attainment_ratio=_ratio(total("num_itl_attained"), total("num_decided")),
        tpot_attainment_ratio=_ratio(total("num_tpot_attained"), total("num_decided")),
        offline_requests_per_hour=per_hour * day.num_engines,
        offline_requests_per_hour_and_engine=per_hour,
        offline_prompt_tokens_per_second=prompts / engine_s * day.num_engines,
        offline_output_tokens_per_second=outputs / engine_s * day.num_engines,
        offline_tokens_per_second_and_engine=(prompts + outputs) / engine_s,
        offline_cached_prompt_ratio=_ratio(total("offline_cached_tokens"), prompts),
        busy_ratio=busy_s / engine_s,
        intervals=_interval_reports(day, tally),
    )


def _interval_reports(day: Day, tally: Tally) -> list[IntervalReport]:
    starts = day.interval_s * np.arange(day.num_intervals)
    ends = np.minimum(starts + day.interval_s, day.duration_s)
    seconds = ends - starts
    scaled = day.num_engines / day.num_simulated / seconds
    columns = {
        "start_s": starts,
        "end_s": ends,
        "online_requests_per_second": day.offered() / seconds,
        "online_work_ratio": day.offered(day.work_s) / seconds / day.num_engines,
        "offline_requests_per_hour": HOUR_S * tally.num_offline * scaled,
        "offline_prompt_tokens_per_second": tally.offline_prompt_tokens * scaled,
        "offline_output_tokens_per_second": tally.offline_output_tokens * scaled,
    }
    attained = zip(tally.num_attained.tolist(), tally.num_decided.tolist(), strict=True)
    return [
        IntervalReport(online_attainment_ratio=_ratio(*counts), **{name: float(v[i]) for name, v in columns.items()})
        for i, counts in enumerate(attained)
    ]


def _ratio(count: int, total: int) -> float | None:
    return count / total if total else None


def interval_for(duration_s: float) -> float:
    """An hour, or what cuts a shorter run into at least six."""
    for interval_s in (HOUR_S, *SHORTER_INTERVALS_S):
        if duration_s >= MIN_INTERVALS * interval_s:
            return interval_s
    return duration_s


def simulate_day(
    traffic: Traffic,
    engine: SimulatedEngine,
    num_engines: int,
    supply: OfflineSupply | None,
    *,
    max_simulated: int | None = None,
    on_progress: Progress | None = None,
    num_threads: int | None = None,
) -> DayReport:
    """Step 2: the whole traffic, until its last arrival, and offline work beside it if there is any.

    Every engine has a pool of its own; they begin at different places of the offline workload. Of many engines, which
    are alike since sessions take turns, the first `max_simulated` stand for all. Raises ValueError if the traffic takes
    no time.
    """
    if traffic.duration_s <= 0:
        raise ValueError("all online requests arrive at once: there is no day to simulate")
    horizon_s = float(np.nextafter(traffic.duration_s, np.inf))  # the last arrival is part of it
    day = Day(
        traffic=traffic,
        work_s=work_of(traffic.workload, engine),
        interval_s=interval_for(traffic.duration_s),
        num_engines=num_engines,
        num_simulated=min(num_engines, max_simulated or num_engines),
    )
    rate = 0.0 if supply is None else probe_rate(supply, engine)

    def run(i: int, report: Progress) -> tuple[Tally, float]:
        online = traffic.share(i, num_engines)
        if supply is None:
            result = simulate(online, engine, horizon_s=horizon_s, on_progress=report)
        else:
            first = i * len(supply.source) // num_engines
            result = simulate_beside(online, supply, engine, horizon_s, rate=rate, first=first, on_progress=report)
        return Tally.of(result, day.interval_s, day.num_intervals), result.busy_s

    runs = run_engines(day.num_simulated, run, on_progress, num_threads)
    return day_report(day, add_tallies([tally for tally, _ in runs]), sum(busy_s for _, busy_s in runs))
