"""Apt-Serve's tables 4 and 5 and figure 8, in simulation.

    python -m bench.studies.apt_serve [--quick] [--seeds N] [--processes 2] [--json FILE] [--output docs/results]

OPT-13B on one A100 of 40 GB, 1,000 requests per run, lengths as in ShareGPT, HumanEval and LongBench.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from bench.studies.document import A100_LIMITS, ERRORS_DRAWN, Cell, Column, Document, Panel, Series, Table
from bench.studies.jobs import run_all
from bench.studies.measurement import Measurement, longest_waits, measure, spread
from bench.studies.paired import gain_table
from bench.studies.settings import Setting, setting_table, supported
from bench.studies.study import run_study
from bench.studies.sustained import MAX_GROWTH, sustained_rate
from bench.studies.workloads import Lengths, lengths
from schedcore.simulation.cost_model import find_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.simulator import simulate

WHOLE = {"enable_chunked_prefill": False, "enable_mixed_steps": False}  # a step computes prompts or decodes
HIDDEN = {"enable_hidden_cache": True}
HOST = {"host_memory_bytes": 40 * 2**30}

VLLM = Setting("vLLM", "fcfs", WHOLE, "first come, first served; whole prompts")
SARATHI = Setting("Sarathi-Serve", "fcfs", {"max_num_batched_tokens": 512}, "chunks beside decodes, 512 tokens a step")
FASTGEN = Setting(
    "FastGen", "fcfs", {"max_num_batched_tokens": 512, "token_composition": "fastgen"}, "its token composition"
)
SWAP = Setting("vLLM, swap", "fcfs", {**WHOLE, **HOST, "preemption": "swap"}, "preempted K and V go to the host")
RESTORE = Setting(
    "vLLM, restore",
    "fcfs",
    {**WHOLE, **HOST, **HIDDEN, "preemption": "restore"},
    "hidden states go to the host (HCache)",
)
APT_KV = Setting("apt, KV only", "apt", WHOLE, "Apt-Serve without the hidden cache")
APT = Setting("apt", "apt", {**WHOLE, **HIDDEN}, "Apt-Serve: adaptive, hybrid cache, whole prompts")
APT_SOFT = Setting(
    "apt, decay 0.4", "apt", {**WHOLE, **HIDDEN, "past_target_decay": 0.4}, "the paper's softer variant (figure 10)"
)
APT_S = Setting("apt chunked", "apt", HIDDEN, "Apt-Serve-S")
HOCKET = Setting("hocket", "hocket", HIDDEN, "the united policy")

TABLE_SETTINGS = (VLLM, APT_KV, APT, APT_SOFT, APT_S, HOCKET)
CURVE_SETTINGS = (VLLM, SARATHI, FASTGEN, SWAP, RESTORE, APT, APT_S, HOCKET)


@dataclass(frozen=True, slots=True)
class DataSet:
    name: str
    cut: str  # of data/
    ttft_ms: float
    itl_ms: float
    rates: tuple[float, ...]  # of figure 8's curve
    start_rate: float  # where the search for sustained rates begins

    def lengths(self, max_total: int) -> Lengths:
        found = lengths(self.cut)
        return found.cut(max_total) if self.cut == "arxiv_summaries" else found.fitting(max_total)


SHAREGPT = DataSet("ShareGPT", "sharegpt_first", 1000, 1000, (1, 2, 3, 4, 5, 6, 8, 10), 4)
HUMANEVAL = DataSet("HumanEval", "humaneval", 500, 500, (5, 10, 20, 25, 30, 35, 40, 50), 20)
LONGBENCH = DataSet("LongBench-like", "arxiv_summaries", 4000, 1000, (0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3), 1)
DATA_SETS = (SHAREGPT, HUMANEVAL, LONGBENCH)

CVS = (1.0, 5.0, 10.0)
TABLE_RATES = ((SHAREGPT, (3.0, 6.0)), (LONGBENCH, (1.5, 3.0)))

Paper = dict[tuple[str, float], tuple[float, ...]]

# SLO attainment in percent by data set, requests per second and CV
PAPER_FCFS: Paper = {
    ("ShareGPT", 3.0): (26.4, 59.7, 11.9), ("ShareGPT", 6.0): (20.0, 18.1, 9.9),
    ("LongBench-like", 1.5): (11.8, 10.8, 5.4), ("LongBench-like", 3.0): (4.8, 4.6, 4.2),
}  # fmt: skip
PAPER_KV: Paper = {
    ("ShareGPT", 3.0): (99.5, 94.7, 75.1), ("ShareGPT", 6.0): (65.7, 66.7, 57.1),
    ("LongBench-like", 1.5): (96.6, 70.0, 43.4), ("LongBench-like", 3.0): (70.0, 58.8, 35.6),
}  # fmt: skip
PAPER_HYBRID: Paper = {
    ("ShareGPT", 3.0): (99.5, 95.9, 78.2), ("ShareGPT", 6.0): (67.3, 67.7, 58.4),
    ("LongBench-like", 1.5): (98.2, 76.0, 50.8), ("LongBench-like", 3.0): (77.6, 64.8, 42.5),
}  # fmt: skip
# Section 6.3: Apt-Serve's sustained rate over vLLM's, Sarathi-Serve's and FastGen's, mean of three models, by level
PAPER_RATIOS = {
    ("ShareGPT", 0.9): (2.3, 2.0, 1.9), ("ShareGPT", 0.6): (7.4, 6.8, 6.4),
    ("HumanEval", 0.9): (1.7, 1.4, 1.4), ("HumanEval", 0.6): (3.0, 2.6, 2.5),
    ("LongBench-like", 0.9): (2.8, 2.5, 2.3), ("LongBench-like", 0.6): (4.2, 3.9, 3.8),
}  # fmt: skip
LEVELS = (0.9, 0.6)

ABOUT = (
    "Targets as in the paper's table 3 for 13B: TTFT and P99 ITL 1 s and 1 s (ShareGPT), 0.5 s and 0.5 s (HumanEval), "
    "4 s and 1 s (LongBench). Arrivals are a gamma renewal process; CV 1 is Poisson. Attainment in percent, mean ± "
    "standard deviation over seeds; waits are the longest of any request in any run, also of requests that missed "
    "their targets, for the first token and between two tokens.",
    "Stand-ins. LongBench: lengths of arXiv summaries, prompts cut until prompt and answer have 2,048 tokens at most. "
    "ShareGPT: first exchanges of at most 2,048 tokens. HumanEval: answers as long as the reference solution. The "
    "paper's FCFS column has the hybrid cache with FCFS order; ours is FCFS with K and V only. (That column rises from "
    "26.4 at CV 1 to 59.7 at CV 5, and the paper's figure 2 has about 70 % for the same rate.)",
    ERRORS_DRAWN,
    A100_LIMITS,
)


@dataclass(frozen=True, slots=True)
class Scale:
    num_requests: int
    num_seeds: int
    num_curve_seeds: int
    num_rates: int  # of each curve
    num_halvings: int  # of the bracket of a sustained rate: 4 leave 4 %
    data_sets: tuple[DataSet, ...] = DATA_SETS
    cvs: tuple[float, ...] = CVS
    table_settings: tuple[Setting, ...] = TABLE_SETTINGS
    curve_settings: tuple[Setting, ...] = CURVE_SETTINGS


FULL = Scale(num_requests=1000, num_seeds=8, num_curve_seeds=4, num_rates=8, num_halvings=4)
QUICK = Scale(num_requests=400, num_seeds=2, num_curve_seeds=1, num_rates=4, num_halvings=2)


@cache
def base_engine() -> SimulatedEngine:
    shape = model_shape("opt-13b")
    options = {"enable_prefix_caching": False}  # prompts share nothing, and the paper's systems did not cache
    cost = find_cost(shape, "a100")
    return SimulatedEngine(model=shape, cost=cost, memory_bytes=40 * 2**30, options=options, draw_errors=True)


def run_one(setting: Setting, data: DataSet, rate: float, cv: float, num_requests: int, seed: int) -> Measurement:
    engine = setting.engine(base_engine())
    workload = data.lengths(engine.context_length).arriving(rate, num_requests, seed, cv)
    return measure(simulate(workload.with_targets(data.ttft_ms, data.itl_ms), engine, error_seed=seed))


def run_seeds(
    setting: Setting, data: DataSet, rate: float, cv: float, num_requests: int, num_seeds: int
) -> list[Measurement]:
    return [run_one(setting, data, rate, cv, num_requests, seed) for seed in range(num_seeds)]


# ---- figure 8 ----


@dataclass(frozen=True, slots=True)
class Curve:
    """Of one setting on one data set."""

    rates: list[float]
    runs: list[list[Measurement]]  # by rate
    sustained: dict[float, float]  # level of attainment -> requests per second
    all_runs: list[Measurement]


def run_curve(setting: Setting, data: DataSet, scale: Scale) -> Curve:
    known: dict[float, list[Measurement]] = {}

    def runs(rate: float) -> list[Measurement]:
        if rate not in known:
            known[rate] = run_seeds(setting, data, rate, 1.0, scale.num_requests, scale.num_curve_seeds)
        return known[rate]

    def attainment(rate: float) -> float:
        return spread(runs(rate), lambda m: m.attainment).mean

    chosen = np.linspace(0, len(data.rates) - 1, min(scale.num_rates, len(data.rates))).round().astype(int)
    rates = [data.rates[i] for i in dict.fromkeys(chosen.tolist())]
    of_rates = [runs(rate) for rate in rates]
    sustained = {level: sustained_rate(attainment, level, data.start_rate, scale.num_halvings) for level in LEVELS}
    return Curve(rates, of_rates, sustained, [run for of_rate in known.values() for run in of_rate])


Curves = dict[tuple[str, str], Curve]  # data set and setting


def sustained_table(data: DataSet, curves: Curves, settings: Sequence[Setting]) -> Table:
    columns = [Column("setting")]
    for level in LEVELS:
        columns += [Column(f"rate at {level:.0%}"), Column("over vLLM", "times"), Column("paper", "times")]
    columns += [Column("longest wait, first token (s)", "1"), Column("between tokens (s)", "1", is_aside=True)]
    rows: list[list[Cell]] = []
    for setting in settings:
        curve = curves[data.name, setting.name]
        row: list[Cell] = [setting.name]
        for level in LEVELS:
            ours, first = curve.sustained[level], curves[data.name, settings[0].name].sustained[level]
            row += [ours, ours / first if first else None, paper_over_vllm(data.name, level, setting.name)]
        rows.append([*row, *longest_waits(curve.all_runs)])
    note = (
        "The paper's factors are means over 13B, 30B and 66B; its baselines' are the quotients of Apt-Serve's factors. "
        f"The search ends at {MAX_GROWTH * data.start_rate:g} requests per second: that rate means that or more. "
        "The waits are those at the highest rate tried, far beyond what the level allows."
    )
    title = f"Figure 8, {data.name}: request rates sustained at {' and '.join(f'{level:.0%}' for level in LEVELS)}"
    return Table(f"{title} SLO attainment", columns, rows, note)


def paper_over_vllm(data: str, level: float, setting: str) -> float | None:
    over_vllm, over_sarathi, over_fastgen = PAPER_RATIOS[data, level]
    known = {VLLM.name: 1.0, APT.name: over_vllm}
    known |= {SARATHI.name: over_vllm / over_sarathi, FASTGEN.name: over_vllm / over_fastgen}
    return known.get(setting)


def curve_table(data: DataSet, curves: Curves, settings: Sequence[Setting]) -> Table:
    rates = curves[data.name, settings[0].name].rates
    columns = [Column("setting"), *(Column(f"{rate:g}/s", "percent", is_aside=rate == rates[0]) for rate in rates)]
    rows: list[list[Cell]] = [
        [setting.name, *(spread(runs, lambda m: m.attainment) for runs in curves[data.name, setting.name].runs)]
        for setting in settings
    ]
    return Table(f"Figure 8, {data.name}: SLO attainment (%) over requests per second", columns, rows)


def curve_panel(data: DataSet, curves: Curves, settings: Sequence[Setting]) -> Panel:
    series = []
    for setting in settings:
        curve = curves[data.name, setting.name]
        means = [100 * spread(runs, lambda m: m.attainment).mean for runs in curve.runs]
        series.append(Series(setting.name, curve.rates, means))
    return Panel(data.name, "requests per second", "SLO attainment (%)", series, y_limit=105)


# ---- tables 4 and 5 ----

STRICT_TITLE = "The same runs, read strictly: TTFT in time and no gap at all above the target (%)"
STRICT_NOTE = (
    "P99 excuses one gap in a hundred, however long: a policy may stop a request for minutes once it has a hundred "
    "tokens, and still count it as served in time. This table does not excuse it."
)

Cells = dict[tuple[str, float, float, str], list[Measurement]]  # data set, rate, CV, setting


def attainment_table(
    title: str, cells: Cells, columns: Sequence[tuple[Setting, Paper | None]],
    note: str = "", get: Callable[[Measurement], float] = lambda m: m.attainment,
) -> Table:  # fmt: skip
    """One row per data set, rate and CV; the paper's numbers, where there are some, behind ours."""
    head = [Column("data set"), Column("rate", "1"), Column("CV", "0")]
    for setting, paper in columns:
        head += [
            Column(setting.name, "percent", setting.name == APT_SOFT.name),
            *([Column("paper", "1", setting is VLLM)] if paper else []),
        ]
    rows = []
    for data, rate, cv in dict.fromkeys(key[:3] for key in cells):
        row: list[Cell] = [data, rate, cv]
        for setting, paper in columns:
            row.append(spread(cells[data, rate, cv, setting.name], get))
            row += [paper[data, rate][CVS.index(cv)]] if paper else []
        rows.append(row)
    return Table(title, head, rows, note)


def wait_table(cells: Cells, settings: Sequence[Setting]) -> Table:
    head = [Column("data set"), Column("rate", "1"), Column("CV", "0")]
    head += [Column(f"{setting.name}: first / between", "1", setting.name == APT_SOFT.name) for setting in settings]
    rows: list[list[Cell]] = []
    for data, rate, cv in dict.fromkeys(key[:3] for key in cells):
        waits = [longest_waits(cells[data, rate, cv, setting.name]) for setting in settings]
        rows.append([data, rate, cv, *(f"{first:.1f} / {gap:.1f}" for first, gap in waits)])
    return Table("Longest wait of any request (s): for the first token / between two tokens", head, rows)


def tables_4_and_5(cells: Cells, settings: Sequence[Setting]) -> list[Table]:
    names = {setting.name for setting in settings}
    paper = {VLLM.name: PAPER_FCFS, APT.name: PAPER_HYBRID}
    first = [(s, paper.get(s.name)) for s in settings if s != APT_KV]
    tables = [attainment_table("Table 5: SLO attainment (%), FCFS against adaptive scheduling", cells, first)]
    if {APT_KV.name, APT.name} <= names:
        second: list[tuple[Setting, Paper | None]] = [(APT_KV, PAPER_KV), (APT, PAPER_HYBRID)]
        tables.append(attainment_table("Table 4: SLO attainment (%), K and V only against hybrid", cells, second))
    strict: list[tuple[Setting, Paper | None]] = [(s, None) for s in settings]
    tables.append(attainment_table(STRICT_TITLE, cells, strict, STRICT_NOTE, get=lambda m: m.strict_attainment))
    return [*tables, wait_table(cells, settings)]


def by_case(cells: Cells) -> dict[str, dict[str, list[Measurement]]]:
    cases: dict[str, dict[str, list[Measurement]]] = {}
    for (data, rate, cv, setting), runs in cells.items():
        cases.setdefault(f"{data}, {rate:g}/s, CV {cv:g}", {})[setting] = runs
    return cases


def attainment_of(run: Measurement) -> float:
    return run.attainment


# ---- the study ----


def build(scale: Scale, processes: int, num_seeds: int | None) -> Document:
    if num_seeds is not None:
        scale = replace(scale, num_seeds=num_seeds, num_curve_seeds=num_seeds)
    base = base_engine()
    in_tables, left_out = supported(scale.table_settings, base)
    in_curves, left_out_too = supported(scale.curve_settings, base)
    document = Document("apt_serve", "Apt-Serve: who holds memory, and in which form")
    document.about += [describe(scale), *ABOUT]
    document.left_out = list(dict.fromkeys([*left_out, *left_out_too]))
    cells = run_all(
        {
            (data.name, rate, cv, s.name): partial(run_seeds, s, data, rate, cv, scale.num_requests, scale.num_seeds)
            for data, rates in TABLE_RATES if data in scale.data_sets
            for rate in rates for cv in scale.cvs for s in in_tables
        }, processes, "tables 4 and 5",
    )  # fmt: skip
    curves = run_all(
        {(data.name, s.name): partial(run_curve, s, data, scale) for data in scale.data_sets for s in in_curves},
        processes, "figure 8",
    )  # fmt: skip
    document.cost_models = {runs[0].cost_model for runs in cells.values()} | {base.cost.name}
    document.tables.append(setting_table([*in_tables, *in_curves]))
    document.tables += tables_4_and_5(cells, in_tables)
    if HOCKET in in_tables:
        document.tables.append(
            gain_table("hocket against the others", HOCKET.name, by_case(cells), attainment_of, is_share=True)
        )
    for data in scale.data_sets:
        document.tables += [sustained_table(data, curves, in_curves), curve_table(data, curves, in_curves)]
        document.panels.append(curve_panel(data, curves, in_curves))
    return document


def describe(scale: Scale) -> str:
    engine = base_engine()
    tokens = engine.cache_bytes // engine.model.kv_bytes_per_token
    projection_ms = 1900 * 1000 * engine.cost.coefficients.hidden_token
    means = "; ".join(f"{data.name} {data.lengths(engine.context_length).means}" for data in scale.data_sets)
    return (
        f"OPT-13B on one A100 of 40 GB, of which 90 % are used: room for K and V of {tokens:,} tokens. "
        f"{scale.num_requests:,} requests per run; {scale.num_seeds} seeds in the tables, {scale.num_curve_seeds} in "
        f"the curves. Mean prompt + answer in tokens: {means}. A request of 1,900 tokens with a hidden cache costs "
        f"{projection_ms:.0f} ms in every step for its projection, by a cost that "
        "is computed from shapes: this bounds what the hybrid cache can gain on long prompts."
    )


if __name__ == "__main__":
    sys.exit(run_study(__doc__ or "", FULL, QUICK, build))
