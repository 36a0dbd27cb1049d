"""Echo's ladder in simulation: what offline work gets done beside online requests that keep their targets.

    python -m bench.studies.echo [--quick] [--seeds N] [--processes 2] [--json FILE] [--output docs/results]

Llama-3.1-8B on one A100 of 40 GB; a recorded arrival process online, questions about long documents offline.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from bench.studies.document import A100_LIMITS, ERRORS_DRAWN, Cell, Column, Document, Panel, Series, Table
from bench.studies.jobs import run_all
from bench.studies.measurement import Measurement, longest_waits, measure, spread
from bench.studies.paired import gain_table
from bench.studies.settings import Setting, setting_table, supported
from bench.studies.study import run_study
from bench.studies.sustained import sustained_rate
from bench.studies.workloads import as_offline, azure_times, documents, lengths
from schedcore.simulation.cost_model import find_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.simulator import simulate
from schedcore.simulation.workloads.workload import Workload

BS = Setting("BS", "bs", note="online requests first, then offline ones in order of arrival")
SETTINGS = (
    BS,
    Setting("BS+E", "bs_e", note="and no step longer than the tightest online deadline allows"),
    Setting("BS+E+S", "bs_es", note="and offline work by plan search"),
    Setting("Echo", "echo", note="and task-aware eviction, and memory reserved for bursts"),
    Setting("hocket", "hocket", note="the united policy"),
)
BY_GAP = (  # online requests ask for the ITL instead of the TPOT
    Setting("Echo, by gap", "echo", note="the same, each token due so long after the one before, however far ahead"),
    Setting("hocket, by gap", "hocket", note="the same"),
)

TTFT_MS, TPOT_MS = 1000.0, 50.0  # section 7.2
ATTAINED_ALONE = 0.95  # online requests without offline work, at the rate that LOAD is a share of
LEAST_ATTAINED = 0.9  # as told, of online requests, for a setting to be compared
LOAD = 0.4  # of that rate: the paper scales its trace so that online requests do not queue
START_RATE = 4.0  # of the search for it
# Abstract: up to 3.3 times BS; section 7.2: BS+E a little below 1. The other bars are in a figure without numbers.
PAPER_SPEED_UP = {"BS": 1.0, "Echo": 3.3}

LOOGLE, SHAREGPT = "LooGLE-like", "ShareGPT-like"

ABOUT = (
    "Online: arrivals of the Azure 2023 conversation trace (cut; each seed starts elsewhere in it), their times "
    "stretched by one factor, with lengths of ShareGPT. Offline: everything is there from the start, in random order, "
    "which mixes the documents as a bulk upload does, and more than can be done. A run ends at the horizon; offline "
    "throughput counts requests that have finished by then, with the prompt tokens that the cache held. Requests and "
    "tokens tell different things: who takes short requests first finishes more requests and fewer tokens.",
    f"Targets: TTFT {TTFT_MS:.0f} ms and TPOT {TPOT_MS:.0f} ms, by cumulative deadlines as in the paper's section 5.1: "
    "arrival + TTFT + i × TPOT for token i. Those settings that say so go by gaps: the last token + as long. "
    "Attainment: of TTFT and of TPOT in the mean over a request, as the paper counts it; and of what the scheduler is "
    "told (docs/metrics.md): nearly all tokens by their cumulative deadlines, or nearly all gaps as short. Mean ± "
    "standard deviation over seeds, percent.",
    "Stand-ins. The paper's online trace is not public: Azure's takes its place. LooGLE: 20 documents of its test data "
    "(11 questions each on average, all four tasks), drawn with replacement as new texts; the paper has subsets "
    "QA_Short and QA_Long.",
    ERRORS_DRAWN,
    A100_LIMITS,
)


@dataclass(frozen=True, slots=True)
class Scale:
    horizon_s: float
    num_seeds: int
    num_questions: int
    num_chats: int
    num_halvings: int = 3
    settings: tuple[Setting, ...] = SETTINGS + BY_GAP


FULL = Scale(horizon_s=1500, num_seeds=4, num_questions=4500, num_chats=32_000)
QUICK = Scale(horizon_s=300, num_seeds=1, num_questions=1000, num_chats=8000)


@cache
def base_engine() -> SimulatedEngine:
    shape = model_shape("llama-3.1-8b")
    cost = find_cost(shape, "a100")
    return SimulatedEngine(
        model=shape, cost=cost, memory_bytes=40 * 2**30, max_model_len=40_960, draw_errors=True
    )  # fmt: skip


def online(setting: Setting, rate: float, horizon_s: float, seed: int) -> Workload:
    workload = lengths("sharegpt_first").workload(azure_times(rate, horizon_s, seed), seed)
    itl_ms, tpot_ms = (TPOT_MS, None) if setting in BY_GAP else (None, TPOT_MS)
    return workload.with_targets(TTFT_MS, itl_ms, tpot_ms)


def offline(kind: str, scale: Scale, seed: int) -> Workload:
    if kind == LOOGLE:
        return documents().pool(scale.num_questions, seed)
    return as_offline(lengths("sharegpt_first").workload(np.zeros(scale.num_chats), seed + 1000))


def run_online(setting: Setting, rate: float, scale: Scale, seed: int) -> Measurement:
    workload = online(setting, rate, scale.horizon_s, seed)
    return measure(simulate(workload, setting.engine(base_engine()), horizon_s=scale.horizon_s, error_seed=seed))


def run_beside(setting: Setting, kind: str, rate: float, scale: Scale, seed: int) -> Measurement:
    workload = online(setting, rate, scale.horizon_s, seed).merged(offline(kind, scale, seed))
    return measure(simulate(workload, setting.engine(base_engine()), horizon_s=scale.horizon_s, error_seed=seed))


def find_rate(setting: Setting, scale: Scale) -> float:
    """Online requests per second of the study."""

    def attainment(rate: float) -> float:
        return run_online(setting, rate, scale, 0).tpot_attainment

    return LOAD * sustained_rate(attainment, ATTAINED_ALONE, START_RATE, scale.num_halvings)


Runs = dict[tuple[str, str], list[Measurement]]  # kind of offline work, setting


def ladder_table(kind: str, runs: Runs, first: str) -> Table:
    columns = [
        Column("setting"), Column("offline requests/s", is_aside=True),
        Column("over the first", "times", is_aside=True),
        Column("offline tokens/s", "0"), Column("over the first", "times"), Column("paper", "times"),
        Column("offline prompt from cache", "percent"), Column("online attainment, TPOT", "percent"),
        Column("as told", "percent"), Column("TTFT p99 (s)", is_aside=True), Column("ITL p99 (ms)", "0"),
        Column("busy", "percent", is_aside=True),
    ]  # fmt: skip
    base = runs[kind, first]
    rows: list[list[Cell]] = []
    for (of_kind, setting), found in runs.items():
        if of_kind != kind:
            continue
        row: list[Cell] = [setting]
        row += [spread(found, lambda m: m.offline_requests_per_s)]
        row += [ratio(found, base, "offline_requests_per_s")]
        row += [spread(found, lambda m: m.offline_tokens_per_s), ratio(found, base, "offline_tokens_per_s")]
        row += [PAPER_SPEED_UP.get(setting) if kind == LOOGLE else None]
        row += [spread(found, lambda m: m.offline_cached), spread(found, lambda m: m.tpot_attainment)]
        row += [spread(found, lambda m: m.attainment), spread(found, lambda m: m.ttft_p99_s)]
        row += [spread(found, lambda m: m.itl_p99_ms)]
        rows.append([*row, spread(found, lambda m: m.busy)])
    is_dry = any(not run.is_offline_left for (of_kind, _), found in runs.items() if of_kind == kind for run in found)
    note = "The offline pool ran dry in some runs: their throughput is a lower bound." if is_dry else ""
    return Table(f"{kind} offline work", columns, rows, note)


def ratio(runs: list[Measurement], base: list[Measurement], name: str) -> float | None:
    """Of the means."""
    below = float(np.mean([getattr(run, name) for run in base]))
    return float(np.mean([getattr(run, name) for run in runs])) / below if below > 0 else None


def wait_table(alone: list[Measurement], runs: Runs) -> Table:
    columns = [Column("offline work"), Column("setting"), Column("first token", "1"), Column("between tokens", "1")]
    rows: list[list[Cell]] = [["none", "", *longest_waits(alone)]]
    rows += [[kind, setting, *longest_waits(found)] for (kind, setting), found in runs.items()]
    return Table("Longest wait of any online request (s)", columns, rows)


def panels(runs: Runs, first: str) -> list[Panel]:
    kinds = list(dict.fromkeys(kind for kind, _ in runs))
    names = list(dict.fromkeys(setting for _, setting in runs))
    places = [float(i) for i in range(len(kinds))]

    def bars(get: str, relative: bool) -> list[Series]:
        values = {
            name: [
                (ratio(runs[kind, name], runs[kind, first], get) or 0.0)
                if relative
                else 100 * spread(runs[kind, name], lambda m: float(getattr(m, get))).mean
                for kind in kinds
            ]
            for name in names
        }
        return [Series(name, places, heights) for name, heights in values.items()]

    speed_up = bars("offline_requests_per_s", True)
    return [
        Panel("offline requests/s, over the first", "", "times", speed_up, kinds),
        Panel("online attainment (TTFT and TPOT)", "", "%", bars("tpot_attainment", False), kinds, y_limit=105),
        Panel("offline prompt tokens from cache", "", "%", bars("offline_cached", False), kinds, y_limit=105),
    ]


def build(scale: Scale, processes: int, num_seeds: int | None) -> Document:
    scale = scale if num_seeds is None else replace(scale, num_seeds=num_seeds)
    document = Document("echo", "Echo: offline work beside online requests")
    settings, document.left_out = supported(scale.settings, base_engine())
    if not settings:
        document.about.append("Nothing to compare.")
        return document
    first, seeds = settings[0], range(scale.num_seeds)
    rate = find_rate(first, scale)
    alone = list(run_all({s: partial(run_online, first, rate, scale, s) for s in seeds}, processes, "alone").values())
    jobs = {
        (kind, setting.name, seed): partial(run_beside, setting, kind, rate, scale, seed)
        for kind in (LOOGLE, SHAREGPT)
        for setting in settings
        for seed in seeds
    }
    runs: Runs = {}
    for (kind, name, _), found in run_all(jobs, processes, "ladder").items():
        runs.setdefault((kind, name), []).append(found)
    document.about += [describe(scale, rate, first, alone), *ABOUT]
    document.cost_models = {run.cost_model for run in alone}
    document.tables = [setting_table(settings)]
    document.tables += [ladder_table(kind, runs, first.name) for kind in (LOOGLE, SHAREGPT)]
    cases: dict[str, dict[str, list[Measurement]]] = {}
    for (kind, name), found_runs in runs.items():
        cases.setdefault(kind, {})[name] = found_runs
    document.tables += [
        gain_table(
            f"Offline tokens per second: {ours} against the others", ours, cases, lambda m: m.offline_tokens_per_s,
            is_share=False, counts=lambda m: m.attainment, least=LEAST_ATTAINED,
        )
        for ours in ("hocket", "hocket, by gap") if ours in {s.name for s in settings}
    ]  # fmt: skip
    document.tables.append(wait_table(alone, runs))
    document.panels = panels(runs, first.name)
    return document


def describe(scale: Scale, rate: float, first: Setting, alone: list[Measurement]) -> str:
    tokens = base_engine().cache_bytes // base_engine().model.kv_bytes_per_token
    attained = 100 * spread(alone, lambda m: m.tpot_attainment).mean
    busy = 100 * spread(alone, lambda m: m.busy).mean
    return (
        f"Llama-3.1-8B on one A100 of 40 GB: room for K and V of {tokens:,} tokens. {rate:.2f} online requests per "
        f"second, {100 * LOAD:.0f} % of the rate at which {first.name} without offline work still attains "
        f"{100 * ATTAINED_ALONE:.0f} %; alone they attain {attained:.1f} % (TPOT) and keep the engine busy "
        f"{busy:.0f} % of the time. {scale.horizon_s / 60:g} simulated minutes, {scale.num_seeds} seeds; offline "
        f"{scale.num_questions:,} questions or {scale.num_chats:,} chats."
    )


if __name__ == "__main__":
    sys.exit(run_study(__doc__ or "", FULL, QUICK, build))
