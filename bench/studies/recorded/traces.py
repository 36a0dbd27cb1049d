"""Every recorded trace with the targets that a server derives by default: `hocket`, `fcfs` and `priority`.

    python -m bench.studies.recorded.traces --data FOLDER [--quick] [--seeds N] [--processes 2] [--json FILE]
        [--output docs/results]

Llama-3.1-8B on one A100 of 40 GB. FOLDER holds the traces named below, NAME.csv.gz each; those that it lacks are left
out.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.lib.recorded_traces import PRIORITY_SHARE, SOURCES, Source, at_rate, window, with_priorities
from bench.studies.document import A100_LIMITS, ERRORS_DRAWN, Cell, Column, Document, Table
from bench.studies.jobs import run_all
from bench.studies.measurement import Measurement, measure, token_gaps
from bench.studies.paired import Gain, mean, paired, waits
from bench.studies.settings import SERVED, Setting, setting_table, supported
from bench.studies.study import run_study
from schedcore._core import algorithms
from schedcore.simulation.cost_model import find_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.simulator import SimulationResult, simulate
from schedcore.simulation.workloads.traces import Trace, read_trace
from schedcore.simulation.workloads.workload import NO_REQUEST, Workload

MAX_CONTEXT = 40_960

NO_FLAG = {"max_ttft_ms": 120_000}
# --ttft-target-ms and --itl-target-ms; who would be late is refused
TOLD = {"max_ttft_ms": 1000}

FCFS = Setting("fcfs", "fcfs", NO_FLAG, "first come, first served; chunks beside decodes")
PRIORITY = Setting("priority", "priority", NO_FLAG, "by priority, then first come, first served")
HOCKET = Setting("hocket", "hocket", NO_FLAG, "no flag: requests have no targets, those here only judge it")
FCFS_TOLD = Setting("fcfs, told", "fcfs", TOLD, "with the targets as flags: refuses who would be late")
PRIORITY_TOLD = Setting("priority, told", "priority", TOLD, "the same")
HOCKET_TOLD = Setting("hocket, told", "hocket", TOLD, "the same, and plans for them")
SETTINGS = (FCFS, PRIORITY, HOCKET, FCFS_TOLD, PRIORITY_TOLD, HOCKET_TOLD)
COMPARED = (
    (HOCKET, FCFS), (HOCKET, PRIORITY), (HOCKET_TOLD, FCFS_TOLD), (HOCKET_TOLD, PRIORITY_TOLD),
)  # fmt: skip

ABOUT = (
    "Traces with times of their own keep them, stretched by one factor, each seed beginning elsewhere; requests of "
    "mooncake's, recorded in quanta of 3 s, are spread over them. Sessions without times of the day begin as a "
    "Poisson process, and a turn follows the answer before it after a pause (exponential, on average 1.1 s for agents, "
    "30 s for chats). Lengths and prompts about documents arrive as a Poisson process. Load is relative to the rate "
    "at which `fcfs` is done with the same requests when all are there at once. "
    f"{PRIORITY_SHARE:.0%} of the requests, drawn, have priority.",
    "Overtaken: requests that were served for the first time after an equal one (priority, length of prompt and "
    "answer) that had come later, of all. Turns behind another, and prompts of which something was cached, are not "
    "counted.",
    "Waits and gaps are of all requests, also of those that missed their targets.",
    ERRORS_DRAWN,
    A100_LIMITS,
)


@dataclass(frozen=True, slots=True)
class Scale:
    num_requests: int
    num_seeds: int
    loads: tuple[float, ...]
    settings: tuple[Setting, ...] = SETTINGS
    sources: tuple[Source, ...] = SOURCES


FULL = Scale(num_requests=1000, num_seeds=4, loads=(0.5, 0.8, 1.1))
QUICK = Scale(num_requests=200, num_seeds=2, loads=(0.8,))


@cache
def base_engine() -> SimulatedEngine:
    shape = model_shape("llama-3.1-8b")
    return SimulatedEngine(
        model=shape, cost=find_cost(shape, "a100"), memory_bytes=40 * 2**30, max_model_len=MAX_CONTEXT,
        draw_errors=True, options=SERVED,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Targets:
    ttft_ms: float
    itl_ms: float


@cache
def default_targets() -> Targets:
    """TTFT: eight times the time of a prompt of 1,024 tokens, at least a second. ITL: twice that of a usual decode."""
    estimates = base_engine().estimates()
    batch = algorithms.LatencyBatch(MAX_CONTEXT)
    batch.add_chunk(0, 1024)
    prefill_s = base_engine().cost.to_core().predict(batch.features)
    return Targets(max(1000.0, 8000 * prefill_s), 1000 * estimates.itl_seconds(int(SERVED["max_num_seqs"])))


# ---- what arrives and is measured ----


@cache
def trace_of(path: Path) -> Trace:
    return read_trace(path).fitting(MAX_CONTEXT)


@dataclass(frozen=True, slots=True)
class Run:
    measurement: Measurement
    ttft_p50_s: float
    overtaken: float  # share of requests
    refused: float


def run_one(folder: Path, source: Source, setting: Setting, load: float, num_requests: int, seed: int) -> Run:
    rows = window(trace_of(folder / f"{source.name}.csv.gz"), source, num_requests, seed)
    workload = with_priorities(at_rate(source, rows, load * capacity(folder, source, num_requests, seed), seed), seed)
    targets = default_targets()
    told = workload.with_targets(targets.ttft_ms, targets.itl_ms)
    given = told if setting.options == TOLD else workload
    result = simulate(given, setting.engine(base_engine()), error_seed=seed, keep_token_times=True)
    judged = judge(result, told)
    measurement, ttft_s = measure(judged), judged.records.first_token_s - judged.records.arrival_s
    overtaken, refused = (count / len(rows) for count in (num_overtaken(judged), measurement.num_refused))
    return Run(measurement, float(np.nanmedian(ttft_s)), overtaken, refused)


@cache
def capacity(folder: Path, source: Source, num_requests: int, seed: int) -> float:
    """Requests per second when all of them are there at once."""
    rows = window(trace_of(folder / f"{source.name}.csv.gz"), source, num_requests, seed)
    nobody_refused = base_engine().with_policy("fcfs")
    result = simulate(at_rate(source, rows, float("inf"), seed), nobody_refused, error_seed=seed)
    return len(rows) / result.end_s


def judge(result: SimulationResult, told: Workload) -> SimulationResult:
    """As if the requests had had these targets."""
    request, gap_s = token_gaps(result)
    is_late = gap_s > told.itl_target_ms[request] / 1000
    violations = np.bincount(request[is_late], minlength=len(told)).astype(np.int32)
    return replace(result, workload=told, records=replace(result.records, num_itl_violations=violations))


def num_overtaken(result: SimulationResult) -> int:
    """Requests that were served for the first time after an equal one that had come later."""
    workload, records = result.workload, result.records
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    counted = (workload.follows == NO_REQUEST) & (records.num_cached_tokens == 0)
    for i in np.lexsort((np.arange(len(workload)), records.arrival_s)).tolist():
        if counted[i]:
            groups[workload.priority[i], workload.input_tokens[i], workload.output_tokens[i]].append(i)
    served = records.scheduled_s
    return sum(int((served[g] > np.minimum.accumulate(served[g][::-1])[::-1]).sum()) for g in groups.values())


# ---- the study ----

Runs = Mapping[tuple[str, float, str], Sequence[Run]]  # trace, load, setting
Get = Callable[[Measurement], float]


def gains_table(runs: Runs, settings: Sequence[Setting]) -> Table:
    """Attainment of ours less that of each of the others."""
    pairs = [(a, b) for a, b in COMPARED if a in settings and b in settings]
    columns = [Column("trace"), Column("load"), *(Column(f"{a.name} less {b.name}") for a, b in pairs)]
    rows: list[list[Cell]] = []
    for trace, load in dict.fromkeys(key[:2] for key in runs):
        found = {s.name: [r.measurement for r in runs[trace, load, s.name]] for s in settings}
        gains = [paired(found[a.name], found[b.name], lambda m: m.attainment) for a, b in pairs]
        rows.append([trace, f"{load:g}", *(gain.text(100, 1) + mark(gain) for gain in gains)])
    note = (
        "Points, runs of one seed compared with each other, and Student's 95 % interval. **Behind**: the whole "
        "interval is below zero."
    )
    return Table("Attainment less that of the others", columns, rows, note)


def mark(gain: Gain) -> str:
    return " **behind**" if gain.mean < -0.0005 and not gain.mean + gain.half_width >= 0 else ""


def trace_table(trace: str, runs: Runs) -> Table:
    columns = [
        Column("load"), Column("setting"), Column("attained", "percent"), Column("TTFT attained", "percent"),
        Column("TTFT p50 / p99 (s)"), Column("ITL p99 (ms)", "0"), Column("longest first / gap (s)"),
        Column("overtaken / refused (%)"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for (of_trace, load, setting), found in runs.items():
        if of_trace != trace:
            continue
        measured = [run.measurement for run in found]
        p50, p99 = float(np.mean([run.ttft_p50_s for run in found])), mean(measured, lambda m: m.ttft_p99_s)
        overtaken, refused = (
            100 * float(np.mean([getattr(run, f) for run in found])) for f in ("overtaken", "refused")
        )
        rows.append([
            f"{load:g}", setting, mean(measured, lambda m: m.attainment), mean(measured, lambda m: m.ttft_attainment),
            f"{p50:.2f} / {p99:.2f}", mean(measured, lambda m: m.itl_p99_ms), waits(measured),
            f"{overtaken:.1f} / {refused:.1f}",
        ])  # fmt: skip
    return Table(trace, columns, rows)


def build(folder: Path, scale: Scale, processes: int, num_seeds: int | None) -> Document:
    scale = scale if num_seeds is None else replace(scale, num_seeds=num_seeds)
    document = Document("traces", "Every trace, with the targets that are derived by default")
    settings, document.left_out = supported(scale.settings, base_engine())
    sources = [source for source in scale.sources if (folder / f"{source.name}.csv.gz").is_file()]
    jobs = {
        (source.name, load, s.name, seed): partial(run_one, folder, source, s, load, scale.num_requests, seed)
        for source in sources
        for seed in range(scale.num_seeds)
        for load in scale.loads
        for s in settings
    }
    done = run_all(jobs, processes, "traces")
    runs: dict[tuple[str, float, str], list[Run]] = {}
    for source in sources:
        for load in scale.loads:
            for s in settings:
                runs[source.name, load, s.name] = [
                    done[source.name, load, s.name, seed] for seed in range(scale.num_seeds)
                ]
    document.about += [describe(scale), *ABOUT]
    document.cost_models = {base_engine().cost.name}
    document.tables = [setting_table(settings), gains_table(runs, settings)]
    document.tables += [trace_table(source.name, runs) for source in sources]
    return document


def describe(scale: Scale) -> str:
    targets = default_targets()
    tokens = base_engine().cache_bytes // base_engine().model.kv_bytes_per_token
    return (
        f"Llama-3.1-8B on one A100 of 40 GB: room for K and V of {tokens:,} tokens, contexts of {MAX_CONTEXT:,}. "
        f"Targets, derived from the cost model: TTFT {targets.ttft_ms:.0f} ms (eight times a prompt of 1,024 tokens, "
        f"at least a second), ITL {targets.itl_ms:.0f} ms at P99 (twice a step of 32 decodes with 1,024 tokens each). "
        f"At most {scale.num_requests:,} requests per run, {scale.num_seeds} seeds."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--data", type=Path, required=True)
    args, rest = parser.parse_known_args(arguments)
    return run_study(__doc__ or "", FULL, QUICK, partial(build, args.data), rest)


if __name__ == "__main__":
    sys.exit(main())
