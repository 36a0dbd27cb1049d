"""Some requests in int8: what the knapsack's other kind brings where memory is short, also where heads are grouped.

    python -m bench.studies.united.int8_rows [--quick] [--seeds N] [--processes 2] [--json FILE] [--output docs/results]

Llama-3.1-8B, whose heads are grouped so that hidden states gain nothing, in 24 GB of an A100, and OPT-13B in 40 GB.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from bench.studies.apt_serve import LONGBENCH, SHAREGPT, DataSet
from bench.studies.document import A100_LIMITS, ERRORS_DRAWN, Cell, Column, Document, Table
from bench.studies.jobs import run_all
from bench.studies.measurement import Measurement, longest_waits, measure, spread
from bench.studies.paired import paired
from bench.studies.settings import Setting, setting_table
from bench.studies.study import run_study
from schedcore.simulation.cost_model import find_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.simulator import Actions, simulate

MAX_CONTEXT = 2048
TO_INT8 = 3  # of Conversion in scheduler_stats.h
SOME = {"int8_units_per_group": 1}
ALL = {"int8_units_per_group": 1, "cache_kind": "int8"}

KV = Setting("hocket", "hocket", {}, "K and V only")
HIDDEN = Setting("hocket, hidden", "hocket", {"enable_hidden_cache": True}, "--cache-kinds auto")
INT8 = Setting("hocket, some in int8", "hocket", SOME, "--cache-kinds int8")
TWICE = Setting("hocket, twice the memory", "hocket", {}, "a cache in int8 throughout: twice the units")
APT = Setting("apt", "apt", {}, "Apt-Serve-S with K and V only")
APT_INT8 = Setting("apt, some in int8", "apt", SOME, "its knapsack over K and V and int8")
FCFS = Setting("fcfs", "fcfs", {}, "in order of arrival")
FCFS_INT8 = Setting("fcfs, all in int8", "fcfs", ALL, "in order of arrival, everybody in int8")
SETTINGS = (KV, HIDDEN, INT8, TWICE, APT, APT_INT8, FCFS, FCFS_INT8)

ABOUT = (
    "Attainment in percent, mean ± standard deviation over seeds, which are the same for all settings; prompts share "
    "nothing. Targets and lengths as in [apt_serve](apt_serve.md). A step with requests in int8 is taken to be as "
    "long as one without, though attention reads half of theirs, and units are taken to be of one size: with 16-bit "
    "elements they are 1.6 % larger at heads of 128.",
    "Simulated: the worker has int8 on CPU only. In int8: requests that were kept so when they were admitted or later, "
    "as a share of all; a request that came in twice counts twice. The others' answers are exact; with a cache in int8 "
    "throughout nobody's are.",
    ERRORS_DRAWN,
    A100_LIMITS,
)


@dataclass(frozen=True, slots=True)
class Case:
    model: str
    memory_gb: int
    data: DataSet
    rates: tuple[float, ...]


CASES = (
    Case("llama-3.1-8b", 24, SHAREGPT, (20, 30)),
    Case("llama-3.1-8b", 24, LONGBENCH, (5, 6, 8)),
    Case("opt-13b", 40, SHAREGPT, (3, 6)),
    Case("opt-13b", 40, LONGBENCH, (1.5, 3)),
)


@dataclass(frozen=True, slots=True)
class Scale:
    num_requests: int
    num_seeds: int
    cv: float = 1.0
    cases: tuple[Case, ...] = CASES


FULL = Scale(num_requests=1000, num_seeds=8)
QUICK = Scale(num_requests=200, num_seeds=2)


@dataclass(frozen=True, slots=True)
class Run:
    measurement: Measurement
    actions: Actions


@cache
def base_engine(model: str, memory_gb: int) -> SimulatedEngine:
    shape = model_shape(model)
    return SimulatedEngine(
        model=shape, cost=find_cost(shape, "a100"), memory_bytes=memory_gb * 2**30, max_model_len=MAX_CONTEXT,
        draw_errors=True, options={"enable_prefix_caching": False},
    )  # fmt: skip


def engine_of(setting: Setting, case: Case) -> SimulatedEngine:
    base = base_engine(case.model, case.memory_gb)
    if setting == TWICE:  # in another process it is a copy
        base = replace(base, memory_bytes=base.memory_bytes + int(base.cache_bytes / base.memory_utilization))
    return setting.engine(base)


def run_one(setting: Setting, case: Case, rate: float, scale: Scale, seed: int) -> Run:
    engine = engine_of(setting, case)
    workload = case.data.lengths(engine.context_length).arriving(rate, scale.num_requests, seed, scale.cv)
    result = simulate(workload.with_targets(case.data.ttft_ms, case.data.itl_ms), engine, error_seed=seed)
    return Run(measure(result), result.actions)


Runs = dict[tuple[Case, float, str], list[Run]]


def attainments(runs: Sequence[Run]) -> list[Measurement]:
    return [run.measurement for run in runs]


def case_name(case: Case, rate: float) -> str:
    return f"{case.model}, {case.data.name}, {rate:g}/s"


def attainment_table(runs: Runs, settings: Sequence[Setting]) -> Table:
    columns = [Column("case"), *(Column(s.name, "percent", is_aside=s in (APT, FCFS)) for s in settings)]
    rows: list[list[Cell]] = []
    for case, rate in cells(runs):
        row: list[Cell] = [case_name(case, rate)]
        for setting in settings:
            found = runs.get((case, rate, setting.name))
            row.append(spread(attainments(found), _attainment) if found else None)
        rows.append(row)
    return Table("SLO attainment (%)", columns, rows)


def gain_table(runs: Runs, scale: Scale) -> Table:
    """Of some in int8, over what it stands beside."""
    columns = [
        Column("case"), Column("over K and V only, 95 % interval"), Column("over twice the memory"),
        Column("over the best other policy"), Column("in int8", "percent"), Column("preempted", "0"),
        Column("K and V only", "0"), Column("longest wait, first token / gap (s); K and V only"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for case, rate in cells(runs):
        ours = runs[case, rate, INT8.name]
        others = {s.name: runs[case, rate, s.name] for s in (APT, APT_INT8, FCFS, FCFS_INT8)}
        best = max(others, key=lambda name: float(np.mean([_attainment(m) for m in attainments(others[name])])))

        def gain(over: Sequence[Run], ours: Sequence[Run] = ours) -> str:
            return paired(attainments(ours), attainments(over), _attainment).text(100, 1)

        kv = runs[case, rate, KV.name]
        waits = [f"{first:.1f} / {gap:.1f}" for first, gap in (longest_waits(attainments(r)) for r in (ours, kv))]
        rows.append([
            case_name(case, rate), gain(kv), gain(runs[case, rate, TWICE.name]), f"{gain(others[best])} ({best})",
            _mean(ours, _num_to_int8) / scale.num_requests, _mean(ours, _num_preemptions), _mean(kv, _num_preemptions),
            "; ".join(waits),
        ])  # fmt: skip
    return Table("What some in int8 bring, in points", columns, rows)


def cells(runs: Runs) -> list[tuple[Case, float]]:
    return list(dict.fromkeys(key[:2] for key in runs))


def _attainment(measurement: Measurement) -> float:
    return measurement.attainment


def _num_preemptions(run: Run) -> float:
    return run.measurement.num_preemptions


def _num_to_int8(run: Run) -> float:
    return run.actions.num_conversions[TO_INT8]


def _mean(runs: Sequence[Run], get: Callable[[Run], float]) -> float:
    return float(np.mean([get(run) for run in runs]))


def build(scale: Scale, processes: int, num_seeds: int | None) -> Document:
    scale = scale if num_seeds is None else replace(scale, num_seeds=num_seeds)
    document = Document("int8_rows", "Some requests in int8, beside others in K and V")
    jobs = {
        (case, rate, s.name, seed): partial(run_one, s, case, rate, scale, seed)
        for case in scale.cases
        for s in settings_of(case)
        for rate in case.rates
        for seed in range(scale.num_seeds)
    }
    runs: Runs = {}
    for (case, rate, name, _), run in run_all(jobs, processes, "cases").items():
        runs.setdefault((case, rate, name), []).append(run)
    document.about += [describe(scale), *ABOUT]
    document.cost_models = {base_engine(case.model, case.memory_gb).cost.name for case in scale.cases}
    document.tables = [setting_table(SETTINGS), attainment_table(runs, SETTINGS), gain_table(runs, scale)]
    return document


def settings_of(case: Case) -> list[Setting]:
    """Hidden states only where they are smaller than K and V."""
    has_hidden = base_engine(case.model, case.memory_gb).model.hidden_units_per_group > 0
    return [s for s in SETTINGS if has_hidden or s is not HIDDEN]


def describe(scale: Scale) -> str:
    bases = {case.model: base_engine(case.model, case.memory_gb) for case in scale.cases}
    rooms = (f"{name}: {b.cache_bytes // b.model.kv_bytes_per_token:,} tokens" for name, b in bases.items())
    return (
        f"Room for K and V of {'; '.join(rooms)}. {scale.num_requests:,} requests per run, Poisson, "
        f"{scale.num_seeds} seeds."
    )


if __name__ == "__main__":
    sys.exit(run_study(__doc__ or "", FULL, QUICK, build))
