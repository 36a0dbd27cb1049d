"""Which routing wins where, and whether a node more is a node more: fleets by rate, route() as in the gateway.

    python -m bench.studies.fleet_routing [--mooncake FILE] [--quick] [--seeds N] [--processes 2] [--json FILE]
        [--output docs/results]

Llama-3-8B. FILE: a trace with prefix_hashes of 512 tokens; without it that part is left out.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path

import numpy as np

from bench.studies.document import A100_LIMITS, Cell, Column, Document, Panel, Series, Table
from bench.studies.jobs import run_all
from bench.studies.measurement import Spread
from bench.studies.study import run_study
from bench.studies.workloads import DATA
from schedcore.simulation.cost_model import find_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.fleet.fleet import Fleet, FleetReport, fleet_trace, simulate_fleet
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.traces import read_trace
from schedcore.simulation.workloads.workload import make_workload

GIB = 2**30
PAUSE_S = 25.0  # mean, from the end of an answer to the next turn of a chat
OUTPUT_S = 0.015  # per token of an answer, for the time at which the next turn comes
MAX_CONTEXT = 8192
MOONCAKE_CONTEXT = 131_072
TARGET_S = 1.0  # TTFT, of the nodes' worth
ATTAINED = 0.99
PRECISION = 1.01  # of a node's worth
SPREAD_S = 10.0  # by which copies of a request are apart
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # two-sided, by number of pairs

ABOUT = (
    "Engines are modelled by rate, not by the full scheduler; routing is the gateway's own function. One node by rate "
    "against the real scheduler on one node, on independent requests: mean TTFT within 20 %, mean E2E within 10 % "
    "(`tests/schedcore/simulation/test_fleet.py`). Tables are stale by 50 to 300 ms, two gateways share the load, four "
    "nodes share a machine and 100 Gbit/s. Each node keeps 64 GB of blocks below its device.",
    f"`chats`: ShareGPT's conversations on A100 nodes, a pause of {PAUSE_S:g} s on average between turns, turns at "
    "times of their own (as recorded, not after the answer that was simulated). `mooncake`: an hour's conversation "
    "trace on H100 nodes, one copy to four nodes; a copy shares with the others only the block of all requests.",
    "`round_robin`, `sticky` and `least_loaded` do not pull blocks, as gateways without a fleet would do; `cost, no "
    "pulls` shows what choosing alone brings. `advised`: a follow-up is announced 8 s before it comes.",
    A100_LIMITS,
)


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    routing: str
    can_pull: bool = True
    lead_s: float = 0.0


SETTINGS = (
    Setting("round robin", "round_robin", can_pull=False),
    Setting("least loaded", "least_loaded", can_pull=False),
    Setting("sticky", "sticky", can_pull=False),
    Setting("cost, no pulls", "cost", can_pull=False),
    Setting("least loaded, pulls", "least_loaded"),
    Setting("cost", "cost"),
    Setting("advised", "advised", lead_s=8.0),
)
BASELINES = ("round robin", "least loaded", "sticky")


@dataclass(frozen=True, slots=True)
class Scale:
    num_nodes: int
    num_seeds: int
    chat_rates: tuple[float, ...]  # conversations that begin per second and node
    seconds: float
    mooncake_loads: tuple[float, ...]  # times the trace's rate, per four nodes
    sizes: tuple[int, ...]
    sizes_seconds: float


FULL = Scale(8, 3, (0.8, 2.0), 120.0, (0.6, 1.0), (2, 8, 32, 128, 512), 60.0)
QUICK = Scale(4, 2, (0.8,), 60.0, (0.6,), (2, 4), 40.0)


@cache
def sharegpt() -> list[list[tuple[int, int]]]:
    """Prompt and answer tokens of each turn."""
    trace = read_trace(DATA / "sharegpt_turns.csv.gz").fitting(MAX_CONTEXT)
    rows = zip(trace.sessions, trace.input_tokens, trace.output_tokens, strict=True)
    return [[(i, max(1, o)) for _, i, o in turns] for _, turns in groupby(rows, key=lambda row: row[0])]


@cache
def chats(rate: float, seconds: float, seed: int):  # type: ignore[no-untyped-def]
    """Conversations that begin at `rate` per second, as if they had for long: each is seen from some turn on."""
    rng = np.random.default_rng([seed, 7])
    rows: list[tuple[float, int, int, int]] = []
    begins = np.cumsum(rng.exponential(1 / rate, round(rate * seconds * 3))) - 2 * seconds
    for session, begin in enumerate(begins):
        at = float(begin)
        for num_input, num_output in sharegpt()[int(rng.integers(len(sharegpt())))]:
            if 0 <= at < seconds:
                rows.append((at, session, num_input, num_output))
            at += num_output * OUTPUT_S + float(rng.exponential(PAUSE_S))
    rows.sort()
    prompts = Prompts.from_runs([[(session, tokens)] for _, session, tokens, _ in rows], [row[1] for row in rows])
    workload = make_workload([row[0] for row in rows], prompts, [row[3] for row in rows], source="ShareGPT")
    return fleet_trace(workload, np.array([row[1] for row in rows], np.int64), 64)


def engine(gpu: str, context: int) -> SimulatedEngine:
    shape = model_shape("llama-3-8b")
    cost = find_cost(shape, gpu)
    return SimulatedEngine(model=shape, cost=cost, memory_bytes=80 * GIB, max_model_len=context)


def fleet(setting: Setting, num_nodes: int, gpu: str, context: int, tokens_per_key: int) -> Fleet:
    return Fleet(
        engine=engine(gpu, context), num_nodes=num_nodes, routing=setting.routing, can_pull=setting.can_pull,
        lead_s=setting.lead_s, nodes_per_machine=4, num_gateways=2, host_bytes=64 * 10**9,
        tokens_per_key=tokens_per_key, max_prefixes=1 << 19,
    )  # fmt: skip


def run_chats(setting: Setting, num_nodes: int, rate: float, seconds: float, seed: int) -> FleetReport:
    trace = chats(rate * num_nodes, seconds, seed)
    result = simulate_fleet(fleet(setting, num_nodes, "a100", MAX_CONTEXT, 64), trace, seed=seed)
    return result.report(TARGET_S, warm_up_s=seconds / 4)


@cache
def mooncake_trace(path: Path, seed: int):  # type: ignore[no-untyped-def]
    trace = read_trace(path).fitting(MOONCAKE_CONTEXT)
    return fleet_trace(trace.workload(jitter_s=3.0, seed=seed), trace.session_numbers, 512)


def run_mooncake(path: Path, setting: Setting, num_nodes: int, load: float, seed: int) -> FleetReport:
    trace = {**mooncake_trace(path, seed)}
    trace["arrival_s"] = trace["arrival_s"] / load
    result = simulate_fleet(
        fleet(setting, num_nodes, "h100", MOONCAKE_CONTEXT, 512), trace,  # type: ignore[arg-type]
        num_copies=num_nodes // 4, num_common_keys=1, spread_s=60.0, seed=seed,
    )  # fmt: skip
    return result.report(TARGET_S, warm_up_s=600.0)


# ---- a node more ----


def worth(setting: Setting, num_nodes: int, seconds: float, seed: int) -> float:
    """Conversations per second and node with which 99 % of first tokens come within a second, by bisection.

    Each pair of nodes brings its own copy of the traffic of a pair.
    """
    low, high = 1.2, 4.2
    while high / low > PRECISION:
        rate = math.sqrt(low * high)
        result = simulate_fleet(
            fleet(setting, num_nodes, "a100", MAX_CONTEXT, 64), chats(2 * rate, seconds, seed),
            num_copies=num_nodes // 2, spread_s=SPREAD_S, seed=seed,
        )  # fmt: skip
        is_held = result.report(TARGET_S, warm_up_s=seconds / 4).ttft_attained_ratio >= ATTAINED
        low, high = (rate, high) if is_held else (low, rate)
    return low


def marginal(points: dict[int, float]) -> dict[int, float]:
    """What each node beyond the fewest brings, of what one of the fewest brings."""
    first, *rest = sorted(points)
    return {n: (points[n] * n - points[first] * first) / (n - first) / points[first] for n in rest}


# ---- tables ----


def spread(values: Sequence[float]) -> Spread:
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)


def setting_rows(title: str, runs: dict[str, list[FleetReport]], note: str = "") -> Table:
    columns = [
        Column("routing"), Column("prompt from cache", "percent"), Column("TTFT p50 (ms)", "0"),
        Column("TTFT p99 (ms)", "0"), Column("E2E mean (s)"), Column("pulled (GiB)", "0"),
        Column("sessions moved", "percent"), Column("busiest over mean"), Column("most requests over mean", "2", True),
        Column("TPOT p50 (ms)", "1", True),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for name, found in runs.items():
        rows.append([
            name, *(spread([getattr(r, field) for r in found]) for field in (
                "cached_prompt_ratio", "ttft_p50_ms", "ttft_p99_ms", "e2e_mean_s", "pulled_gib", "moved_ratio",
                "busy_spread", "request_spread", "tpot_p50_ms",
            )),
        ])  # fmt: skip
    return Table(title, columns, rows, note)


def paired_table(runs: dict[str, dict[str, list[FleetReport]]]) -> Table:
    columns = [Column("workload"), Column("routing"), Column("over"), Column("TTFT p50"), Column("TTFT p99"),
               Column("E2E mean")]  # fmt: skip
    rows: list[list[Cell]] = []
    for workload, found in runs.items():
        for name in ("cost", "advised"):
            for baseline in BASELINES:
                pairs = list(zip(found[name], found[baseline], strict=True))
                cells: list[Cell] = [
                    ratio_text([getattr(a, f) / getattr(b, f) for a, b in pairs])
                    for f in ("ttft_p50_ms", "ttft_p99_ms", "e2e_mean_s")
                ]
                rows.append([workload, name, baseline, *cells])
    note = "Geometric mean over paired seeds, and its 95 % interval (Student's t of the logarithms)."
    return Table("Ratios, the same arrivals for both", columns, rows, note)


def ratio_text(ratios: Sequence[float]) -> str:
    logs = np.log(ratios)
    mean, n = float(logs.mean()), len(ratios)
    half = T_95[min(n, 5)] * float(logs.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return f"{math.exp(mean):.2f} ({math.exp(mean - half):.2f} to {math.exp(mean + half):.2f})"


def sizes_table(points: dict[str, dict[int, float]]) -> Table:
    columns = [Column("routing"), Column("nodes", "0"), Column("conversations/s and node", "3"),
               Column("each node beyond the fewest", "3")]  # fmt: skip
    rows: list[list[Cell]] = []
    for name, found in points.items():
        brings = marginal(found)
        rows += [[name, float(n), value, brings.get(n)] for n, value in sorted(found.items())]
    note = (
        f"The most conversations at which {ATTAINED:.0%} of first tokens come within {TARGET_S:g} s, found to 1 %, "
        "one seed; of what a node of the smallest fleet brings."
    )
    return Table("Is a node more a node more? (chats)", columns, rows, note)


def build(mooncake: Path | None, scale: Scale, processes: int, seeds: int | None) -> Document:
    num_seeds, n = seeds or scale.num_seeds, scale.num_nodes
    jobs = {}
    for setting in SETTINGS:
        for seed in range(num_seeds):
            for rate in scale.chat_rates:
                key = (f"chats, {rate:g}/s and node", setting.name, seed)
                jobs[key] = partial(run_chats, setting, n, rate, scale.seconds, seed)
            for load in scale.mooncake_loads if mooncake else ():
                key = (f"mooncake, {load:g} x its rate", setting.name, seed)
                jobs[key] = partial(run_mooncake, mooncake, setting, n, load, seed)  # type: ignore[arg-type]
    found = run_all(jobs, processes, "routings")
    runs: dict[str, dict[str, list[FleetReport]]] = {}
    for (workload, name, _), report in found.items():
        runs.setdefault(workload, {}).setdefault(name, []).append(report)
    sized = [setting for setting in SETTINGS if setting.name in ("advised", "sticky")]
    worths = run_all(
        {
            (s.name, size): partial(worth, s, size, scale.sizes_seconds, 0)
            for size in scale.sizes for s in sized
        },
        processes, "sizes",
    )  # fmt: skip
    points: dict[str, dict[int, float]] = {}
    for (name, size), value in worths.items():
        points.setdefault(name, {})[size] = value
    document = Document("fleet_routing", "Fleets: which routing wins where", list(ABOUT))
    document.engines = "engines by rate"
    document.cost_models = {engine("a100", MAX_CONTEXT).cost.name, engine("h100", MAX_CONTEXT).cost.name}
    if mooncake is None:
        document.left_out.append("mooncake: no trace was given")
    document.tables = [
        paired_table(runs), sizes_table(points),
        *(setting_rows(f"{workload}, {n} nodes", by_name) for workload, by_name in runs.items()),
    ]  # fmt: skip
    document.panels = [panel(runs, "TTFT p99", "ttft_p99_ms"), panel(runs, "TTFT p50", "ttft_p50_ms")]
    return document


def panel(runs: dict[str, dict[str, list[FleetReport]]], title: str, field: str) -> Panel:
    def mean(workload: str, name: str) -> float:
        return float(np.mean([getattr(report, field) for report in runs[workload][name]]))

    series = [Series(s.name, [], [mean(w, s.name) / mean(w, "sticky") for w in runs]) for s in SETTINGS]
    return Panel(title, "", "times that of sticky", series, ticks=[w.replace(", ", "\n") for w in runs])


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--mooncake", type=Path)
    args, rest = parser.parse_known_args()
    return run_study(__doc__ or "", FULL, QUICK, partial(build, args.mooncake), rest)


if __name__ == "__main__":
    sys.exit(main())
