"""All four papers at once, and without each of them: how often does which act, and what does it bring?

    python -m bench.studies.united.all_four [--quick] [--seeds N] [--processes 2] [--json FILE] [--output docs/results]

Llama-2-7B, whose hidden states take half of K and V, in 24 GB of an A100: a small pool.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from bench.studies.document import A100_LIMITS, ERRORS_DRAWN, Cell, Column, Document, Table
from bench.studies.jobs import run_all
from bench.studies.measurement import Measurement, measure
from bench.studies.paired import mean, paired, waits
from bench.studies.settings import Setting, setting_table, supported
from bench.studies.study import run_study
from bench.studies.workloads import Documents, conversations, lengths
from schedcore._core import RatioReason
from schedcore.simulation.cost_model import find_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.simulator import Actions, simulate
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.workload import Workload

MAX_CONTEXT = 4096
TTFT_MS, ITL_MS = 1000.0, 50.0
SESSION_RATE = 0.25  # conversations that begin per second, at load 1
BURST_RATE, BURST_CV = 2.0, 5.0  # single requests per second, at load 1
DOCUMENTS = Documents([1500], [[(1560, 80)] * 20])  # each a text of its own with 20 questions
HOST_BLOCKS = 4096  # of 8 MiB: 32 GiB

FORMS = {"enable_hidden_cache": True}
TIER = {"num_host_blocks": HOST_BLOCKS}
SOLVER = {"enable_partial_caching": True}
NO_KNAPSACK = {"enable_residents": False}
NO_ECHO = {"enable_plan_search": False, "enable_task_aware_eviction": False, "enable_reserve": False}

ALL = Setting("all four", "hocket", {**FORMS, **SOLVER, **TIER}, "everything on")
ALL_BUT_ONE = (
    Setting("less Apt-Serve", "hocket", {**SOLVER, **TIER, **NO_KNAPSACK}, "no knapsack, no hidden states"),
    Setting("less hidden states", "hocket", {**SOLVER, **TIER}, "the knapsack with K and V only"),
    Setting("less Echo", "hocket", {**FORMS, **SOLVER, **TIER, **NO_ECHO}, "offline work in order"),
    Setting("less eLLM", "hocket", {**FORMS, **TIER}, "no b/r solver"),
    Setting("less tiers", "hocket", {**FORMS, **SOLVER}, "Symphony's: no memory behind the device's"),
)
NONE = Setting("none", "hocket", {**NO_KNAPSACK, **NO_ECHO}, "online first, steps no longer than deadlines allow")
FCFS = Setting("fcfs", "fcfs", TIER, "in order of arrival, with the tier")
PRIORITY = Setting("priority", "priority", TIER, "online first, with the tier")
SETTINGS = (ALL, *ALL_BUT_ONE, NONE, FCFS, PRIORITY)

ABOUT = (
    f"Online, at load 1: {SESSION_RATE:g} conversations per second begin (Poisson), each with its recorded turns and "
    f"pauses (median 129 s), and {BURST_RATE:g} single requests per second in bursts (gamma, CV {BURST_CV:g}). "
    "Offline: 20 questions about each of many documents of 1,500 tokens, there from the start in random order.",
    f"Targets of online requests: TTFT {TTFT_MS:.0f} ms, P99 ITL {ITL_MS:.0f} ms. Offline throughput counts prompt and "
    "output tokens of what has finished by the horizon.",
    "Advisories are not in this study: what a prefetch brings is in [advisories](advisories.md).",
    "Stand-ins. Conversations and single requests: ShareGPT, at most 4,096 tokens, turns as far as lengths tell; "
    "pauses: the gaps between turns of Mooncake's trace.",
    ERRORS_DRAWN,
    A100_LIMITS,
)


@dataclass(frozen=True, slots=True)
class Scale:
    horizon_s: float
    num_seeds: int
    num_questions: int
    loads: tuple[float, ...]
    settings: tuple[Setting, ...] = SETTINGS


FULL = Scale(horizon_s=900, num_seeds=5, num_questions=12_000, loads=(1.0, 2.0, 3.0))
QUICK = Scale(horizon_s=200, num_seeds=2, num_questions=3000, loads=(2.0,))


@dataclass(frozen=True, slots=True)
class Run:
    measurement: Measurement
    actions: Actions
    num_steps: int


@cache
def base_engine() -> SimulatedEngine:
    shape = model_shape("llama-2-7b")
    return SimulatedEngine(
        model=shape, cost=find_cost(shape, "a100"), memory_bytes=24 * 2**30, max_model_len=MAX_CONTEXT,
        draw_errors=True, options={"max_wait_ms": 20_000, "starving_turn_ms": 2000},
    )  # fmt: skip


def work(load: float, scale: Scale, seed: int) -> Workload:
    sessions = conversations(load * SESSION_RATE, scale.horizon_s, MAX_CONTEXT, seed)
    process = ArrivalProcess(load * BURST_RATE, BURST_CV)
    times = process.times(2 * process.num_in(scale.horizon_s) + 100, seed + 1)
    singles = lengths("sharegpt_first").fitting(MAX_CONTEXT).workload(times[times < scale.horizon_s], seed)
    online = sessions.merged(singles).with_targets(TTFT_MS, ITL_MS)
    return online.merged(DOCUMENTS.pool(scale.num_questions, seed))


def run_one(setting: Setting, load: float, scale: Scale, seed: int) -> Run:
    engine = setting.engine(base_engine())
    result = simulate(work(load, scale, seed), engine, horizon_s=scale.horizon_s, error_seed=seed)
    return Run(measure(result), result.actions, result.num_steps)


Runs = dict[tuple[float, str], list[Run]]  # load, setting


def measured(runs: Sequence[Run]) -> list[Measurement]:
    return [run.measurement for run in runs]


def brings_table(runs: Runs, scale: Scale, settings: Sequence[Setting]) -> Table:
    """What everything has beside everything less one part, and beside the others."""
    columns = [Column("load"), Column("all four less"), Column("attained, points"), Column("offline tokens/s")]
    rows: list[list[Cell]] = []
    for load in scale.loads:
        ours = measured(runs[load, ALL.name])
        for setting in settings:
            if setting == ALL:
                continue
            others = measured(runs[load, setting.name])
            attained = paired(ours, others, lambda m: m.attainment)
            offline = paired(ours, others, lambda m: m.offline_tokens_per_s)
            rows.append([f"{load:g}", setting.name, attained.text(100, 1), offline.text(1, 0)])
    note = (
        "Runs of one seed compared with each other, and Student's 95 % interval. More is better in both, and some part "
        "may give of one for the other."
    )
    return Table("What each brings", columns, rows, note)


def result_table(load: float, runs: Runs, settings: Sequence[Setting]) -> Table:
    columns = [
        Column("setting"), Column("attained", "percent"), Column("TTFT attained", "percent"),
        Column("TTFT p99 (s)", "1"), Column("ITL p99 (ms)", "0"), Column("offline tokens/s", "0"),
        Column("prompt from cache, online / offline (%)"), Column("longest first / gap (s)"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for setting in settings:
        found = measured(runs[load, setting.name])
        online, offline = mean(found, lambda m: m.online_cached), mean(found, lambda m: m.offline_cached)
        rows.append([
            setting.name, mean(found, lambda m: m.attainment), mean(found, lambda m: m.ttft_attainment),
            mean(found, lambda m: m.ttft_p99_s), mean(found, lambda m: m.itl_p99_ms),
            mean(found, lambda m: m.offline_tokens_per_s), f"{100 * online:.0f} / {100 * offline:.0f}", waits(found),
        ])  # fmt: skip
    return Table(f"Load {load:g}", columns, rows)


def actions_table(runs: Runs, scale: Scale) -> Table:
    """Of the setting with everything on, per run."""
    columns = [
        Column("load"), Column("steps", "0"), Column("gave way, online / offline"),
        Column("hidden to K and V", "0"), Column("steps with r > 0", "0"), Column("recomputed tokens", "0"),
        Column("found on the device / host (tokens)"), Column("waits for the host", "0"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for load in scale.loads:
        found = runs[load, ALL.name]

        def per_run(get: Callable[[Actions], float], found: Sequence[Run] = found) -> float:
            return float(np.mean([get(run.actions) for run in found]))

        rows.append([
            f"{load:g}", float(np.mean([run.num_steps for run in found])),
            f"{per_run(lambda a: a.num_preempted[0]):.0f} / {per_run(lambda a: a.num_preempted[1]):.0f}",
            per_run(lambda a: a.num_conversions[0]), per_run(lambda a: a.num_ratio_steps[RatioReason.RECOMPUTES]),
            per_run(lambda a: a.num_recomputed_tokens),
            f"{per_run(lambda a: a.num_hit_tokens[0]):,.0f} / {per_run(lambda a: a.num_hit_tokens[1]):,.0f}",
            per_run(lambda a: a.num_restores),
        ])  # fmt: skip
    return Table("How often they act, all four on", columns, rows, "Means over seeds.")


def reasons_table(runs: Runs, scale: Scale) -> Table:
    """Why r was 0."""
    columns = [Column("load"), Column("of all steps (%)")]
    rows: list[list[Cell]] = []
    for load in scale.loads:
        steps = np.sum([run.actions.num_ratio_steps for run in runs[load, ALL.name]], axis=0)
        shares = 100 * steps / steps.sum()
        words = (f"{RatioReason(i).name.lower()} {share:.1f}" for i, share in enumerate(shares) if share)
        rows.append([f"{load:g}", ", ".join(words)])
    return Table("What the b/r solver said", columns, rows)


def build(scale: Scale, processes: int, num_seeds: int | None) -> Document:
    scale = scale if num_seeds is None else replace(scale, num_seeds=num_seeds)
    document = Document("all_four", "All four papers at once, and without each of them")
    settings, document.left_out = supported(scale.settings, base_engine())
    jobs = {
        (load, s.name, seed): partial(run_one, s, load, scale, seed)
        for load in scale.loads
        for s in settings
        for seed in range(scale.num_seeds)
    }
    runs: Runs = {}
    for (load, name, _), run in run_all(jobs, processes, "settings").items():
        runs.setdefault((load, name), []).append(run)
    document.about += [describe(scale), *ABOUT]
    document.cost_models = {base_engine().cost.name}
    document.tables = [setting_table(settings), brings_table(runs, scale, settings), actions_table(runs, scale)]
    document.tables.append(reasons_table(runs, scale))
    document.tables += [result_table(load, runs, settings) for load in scale.loads]
    return document


def describe(scale: Scale) -> str:
    tokens = base_engine().cache_bytes // base_engine().model.kv_bytes_per_token
    host = HOST_BLOCKS * base_engine().block_size
    return (
        f"Llama-2-7B in 24 GB of an A100: room for K and V of {tokens:,} tokens, on the host of {host:,}; contexts of "
        f"{MAX_CONTEXT:,}. {scale.horizon_s / 60:.0f} simulated minutes, {scale.num_seeds} seeds, "
        f"{scale.num_questions:,} offline questions."
    )


if __name__ == "__main__":
    sys.exit(run_study(__doc__ or "", FULL, QUICK, build))
