"""Which resources hold the online targets at peak, and what offline work they leave room for (Echo, section 5.4).

Step 1 takes the busiest window of the online traffic, with what comes before and after it, and tries hardware from the
smallest to the largest, with as many engines as it takes. More engines are taken to be no worse than fewer, so the
least number is found by doubling and bisection; the plan shows every run that was made. Step 2 is day.py: all
of the traffic on the least resources, beside offline work that never runs dry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import numpy.typing as npt

from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.planning.day import DayReport
from schedcore.simulation.planning.fleet import Traffic, run_engines
from schedcore.simulation.planning.hardware import Hardware
from schedcore.simulation.planning.peak import peak_start_s, work_of
from schedcore.simulation.report import itl_attained, slo_attained, tpot_attained, ttft_attained
from schedcore.simulation.simulator import Progress, SimulationResult, simulate
from schedcore.simulation.workloads.workload import NO_REQUEST, NO_TARGET, Workload

Bool = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]

EngineFor = Callable[[Hardware], SimulatedEngine]  # raises ValueError where the model does not fit
ProgressFor = Callable[[str], Progress]  # what is under way -> its progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    attainment: float = 0.9  # of the requests in the window
    window_s: float = 300.0
    warmup_s: float = 120.0  # of traffic before the window, and as much behind it
    max_gpus: int = 64  # of all engines together
    price: dict[str, float] = field(default_factory=dict)  # of a GPU by its name, in any unit; 1 where it is missing
    num_threads: int | None = None  # None: one per core

    def __post_init__(self) -> None:
        if not 0 < self.attainment <= 1:
            raise ValueError(f"attainment must be above 0 and at most 1, not {self.attainment:g}")
        if not self.window_s > 0 or not self.warmup_s >= 0:
            raise ValueError("the window must be longer than nothing, and the warm-up not negative")
        if any(not price > 0 for price in self.price.values()):
            raise ValueError("a price must be positive")

    def cost(self, hardware: Hardware, num_engines: int = 1) -> float:
        return num_engines * hardware.num_gpus * self.price.get(hardware.gpu, 1.0)


class PeakWindow(msgspec.Struct, frozen=True, kw_only=True):
    start_s: float
    end_s: float
    num_requests: int
    requests_per_second: float
    work_ratio: float  # work offered in it over the mean of as long a stretch of the traffic


class Attainment(msgspec.Struct, frozen=True, kw_only=True):
    """Of the requests that arrive in the window."""

    slo_ratio: float  # all targets
    ttft_ratio: float
    itl_ratio: float
    tpot_ratio: float
    p99_ttft_ms: float | None  # of those that finished


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the window."""

    hardware: str  # of an engine
    cost_model: str
    num_engines: int
    num_gpus: int  # of all engines
    cost: float  # GPUs times price
    attainment: Attainment
    busy_ratio: float
    is_enough: bool


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    hardware: str
    reason: str


class PeakPlan(msgspec.Struct, frozen=True, kw_only=True):
    window: PeakWindow
    trials: list[Trial]  # in the order in which they were made
    rejections: list[Rejection]
    least: Trial | None  # the cheapest that is enough; None if there is none


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Every number in it is simulated, with the cost models that the trials name."""

    is_simulated: bool = True
    model: str
    policy: str
    workload: str
    offline: str | None
    ttft_target_ms: float | None
    itl_target_ms: float | None
    tpot_target_ms: float | None
    attainment_target_ratio: float
    peak: PeakPlan
    gpu_hours: float | None = None  # of the least resources, as long as the traffic lasts
    day: DayReport | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    hardware: Hardware
    num_engines: int


def least_number(is_enough: Callable[[int], bool], limit: int, *, is_limit_enough: bool = False) -> int | None:
    """The least n in 1..limit with is_enough(n), which must not turn false again; None if there is none.

    By doubling, then bisection: about 2 log2(n) calls, each n at most once.
    """
    low, high = 0, 1
    while high < limit and not is_enough(high):
        low, high = high, 2 * high
    if high >= limit:
        high = limit
        if not (is_limit_enough or is_enough(limit)):
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


class PeakSearch:
    """Step 1. Raises ValueError if the workload has no requests or no targets."""

    def __init__(
        self, traffic: Traffic, hardware: Sequence[Hardware], engine_for: EngineFor, options: PlanOptions
    ) -> None:
        self._options = options
        if not has_targets(traffic.workload):
            raise ValueError("online requests have no targets: say which TTFT, ITL or TPOT is to be held")
        self._engines: dict[Hardware, SimulatedEngine] = {}
        self._rejections: list[Rejection] = []
        for kind in hardware:
            try:
                self._engines[kind] = engine_for(kind)
            except ValueError as error:
                self._reject(kind, str(error))
        self._trials: list[Trial] = []
        self.window, self._traffic, self._is_counted = self._cut(traffic)

    def run(self, progress: ProgressFor) -> tuple[PeakPlan, Choice | None]:
        best: tuple[Trial, Choice] | None = None
        for kind, engine in self._engines.items():
            found = self._least_engines(kind, engine, best[0].cost if best else None, progress)
            best = found or best
        plan = PeakPlan(
            window=self.window,
            trials=self._trials,
            rejections=self._rejections,
            least=best[0] if best else None,
        )
        return plan, best[1] if best else None

    def _cut(self, traffic: Traffic) -> tuple[PeakWindow, Traffic, Bool]:
        """Work is weighed by the first engine; another would give nearly the same window."""
        options, arrivals = self._options, traffic.workload.arrival_s
        engine = next(iter(self._engines.values()), None)
        work = np.ones(len(traffic)) if engine is None else work_of(traffic.workload, engine)
        start_s = peak_start_s(arrivals, work, options.window_s)
        end_s = start_s + options.window_s
        in_window = (arrivals >= start_s) & (arrivals < end_s)
        span_s = min(options.window_s, traffic.duration_s) or options.window_s
        mean_work = float(work.sum()) * span_s / (traffic.duration_s or span_s)
        window = PeakWindow(
            start_s=start_s,
            end_s=end_s,
            num_requests=int(in_window.sum()),
            requests_per_second=float(in_window.sum()) / span_s,
            work_ratio=float(work[in_window].sum()) / mean_work if mean_work > 0 else 1.0,
        )
        first_s = max(0.0, start_s - options.warmup_s)
        around = traffic.between(first_s, end_s + options.warmup_s)
        times = around.workload.arrival_s + first_s
        return window, around, (times >= start_s) & (times < end_s)

    def _least_engines(
        self, kind: Hardware, engine: SimulatedEngine, best_cost: float | None, progress: ProgressFor
    ) -> tuple[Trial, Choice] | None:
        """Only if it costs less than the best so far."""
        each, limit = self._options.cost(kind), self._options.max_gpus // kind.num_gpus
        if best_cost is not None:
            limit = min(limit, int(np.ceil(best_cost / each)) - 1)
        if limit < 1:
            is_dear = best_cost is not None
            why = "one engine costs as much as the plan so far" if is_dear else "one engine exceeds the limit of GPUs"
            self._reject(kind, why)
            return None
        alone = self._alone(engine, progress(f"{kind.name}, one request at a time"))
        if alone.slo_ratio < self._options.attainment:
            self._reject(kind, f"too slow in any number: one request at a time, {_said(alone)}")
            return None
        trials: dict[int, Trial] = {}

        def is_enough(num_engines: int) -> bool:
            report = progress(f"{kind.name}, {_engines(num_engines)}")
            trials[num_engines] = self._try(kind, engine, num_engines, report)
            self._trials.append(trials[num_engines])
            return trials[num_engines].is_enough

        is_cheaper_known = best_cost is not None and limit < self._options.max_gpus // kind.num_gpus
        if is_cheaper_known and not is_enough(limit):
            self._reject(kind, f"not enough for less than the plan so far: {_engines(limit)}")
            return None
        least = least_number(is_enough, limit, is_limit_enough=is_cheaper_known)
        if least is None:
            self._reject(
                kind, f"{_engines(limit)} {'is' if limit == 1 else 'are'} not enough: {_said(trials[limit].attainment)}"
            )
            return None
        return trials[least], Choice(kind, least)

    def _reject(self, kind: Hardware, reason: str) -> None:
        self._rejections.append(Rejection(hardware=kind.name, reason=reason))

    def _alone(self, engine: SimulatedEngine, report: Progress) -> Attainment:
        """No request ever waits for another: what no number of engines can better, but for the order of cache hits."""
        workload = self._traffic.workload
        order = np.argsort(workload.arrival_s, kind="stable").astype(np.int32)
        follows = np.full(len(workload), NO_REQUEST, np.int32)
        follows[order[1:]] = order[:-1]
        one_by_one = replace(workload, arrival_s=np.zeros(len(workload)), follows=follows)
        return attainment([simulate(one_by_one, engine, on_progress=report)], [self._is_counted])

    def _try(self, kind: Hardware, engine: SimulatedEngine, num_engines: int, report: Progress) -> Trial:
        used = [i for i in range(num_engines) if np.any(self._traffic.session % num_engines == i)]

        def run(i: int, of_engine: Progress) -> SimulationResult:
            return simulate(self._traffic.share(used[i], num_engines), engine, on_progress=of_engine)

        results = run_engines(len(used), run, report, self._options.num_threads)
        counted = [self._is_counted[self._traffic.session % num_engines == i] for i in used]
        found = attainment(results, counted)
        return Trial(
            hardware=kind.name,
            cost_model=engine.cost.name,
            num_engines=num_engines,
            num_gpus=num_engines * kind.num_gpus,
            cost=self._options.cost(kind, num_engines),
            attainment=found,
            busy_ratio=sum(r.busy_s for r in results) / (num_engines * max(r.end_s for r in results)),
            is_enough=found.slo_ratio >= self._options.attainment,
        )


def _engines(number: int) -> str:
    return "1 engine" if number == 1 else f"{number} engines"


def _said(found: Attainment) -> str:
    parts = {"TTFT": found.ttft_ratio, "ITL": found.itl_ratio, "TPOT": found.tpot_ratio}
    named = ", ".join(f"{name} {100 * ratio:.1f} %" for name, ratio in parts.items())
    return f"{100 * found.slo_ratio:.1f} % attain ({named})"


def has_targets(workload: Workload) -> bool:
    targets = (workload.ttft_target_ms, workload.itl_target_ms, workload.tpot_target_ms)
    return any(bool(np.any(target < NO_TARGET)) for target in targets)


def attainment(results: Sequence[SimulationResult], counted: Sequence[Bool]) -> Attainment:
    """Over several engines; counted: of each result's requests, those that matter."""

    def ratio(is_attained: Callable[[SimulationResult], Bool]) -> float:
        parts = [is_attained(r)[chosen] for r, chosen in zip(results, counted, strict=True)]
        return float(np.concatenate(parts).mean())

    waits = [
        (r.records.first_token_s - r.records.arrival_s)[chosen] for r, chosen in zip(results, counted, strict=True)
    ]
    seen = np.concatenate(waits)
    seen = seen[np.isfinite(seen)]
    return Attainment(
        slo_ratio=ratio(slo_attained),
        ttft_ratio=ratio(ttft_attained),
        itl_ratio=ratio(itl_attained),
        tpot_ratio=ratio(tpot_attained),
        p99_ttft_ms=1000 * float(np.percentile(seen, 99)) if seen.size else None,
    )
