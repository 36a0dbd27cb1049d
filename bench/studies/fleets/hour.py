"""A thousand nodes under an hour of a thousand times a recorded rate: what it takes, and which routing wins.

    python -m bench.studies.fleets.hour --mooncake FILE [--quick] [--seeds N] [--processes 2] [--json FILE]
        [--output docs/results]

Llama-3-8B, a node is an engine on four H100. FILE: a trace with prefix_hashes of 512 tokens, an hour of it. One run
takes some four minutes of a core and 1.9 GB; `--quick` is 8 nodes and copies.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bench.studies.document import Cell, Column, Document, Panel, Series, Table
from bench.studies.fleet_routing import (
    BASELINES,
    GIB,
    MOONCAKE_CONTEXT,
    SETTINGS,
    Setting,
    mooncake_trace,
    ratio_text,
    spread,
)
from bench.studies.jobs import run_all
from bench.studies.study import run_study
from schedcore.simulation.cost_model import find_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.fleet.fleet import Fleet, FleetReport, simulate_fleet
from schedcore.simulation.model_shape import model_shape

NUM_GPUS = 4  # of a node
WARM_UP_S = 600.0
TARGET_S = 1.0  # TTFT
NAMES = ("round robin", "least loaded", "sticky", "advised")

ABOUT = (
    "An hour's conversation trace, one copy to each node of four H100, a copy sharing with the others only the block "
    "of all requests. Engines are modelled by rate, routing is the gateway's own function: what that means stands in "
    "[fleet_routing](fleet_routing.md), as do the settings. Seeds shift the copies against each other; all settings "
    "have the same arrivals.",
    "`CPU` is process time of one run, the trace's preparation left out: a time of the machine that simulated, and the "
    "only measured figure here.",
)


@dataclass(frozen=True, slots=True)
class Scale:
    num_nodes: int
    num_seeds: int


FULL = Scale(1000, 2)
QUICK = Scale(8, 2)


@dataclass(frozen=True, slots=True)
class Run:
    report: FleetReport
    num_requests: int  # those of the warm-up, too
    cpu_s: float


def engine() -> SimulatedEngine:
    shape = model_shape("llama-3-8b")
    cost = find_cost(shape, "h100", NUM_GPUS)
    return SimulatedEngine(
        model=shape, cost=cost, memory_bytes=NUM_GPUS * 80 * GIB, max_model_len=MOONCAKE_CONTEXT
    )  # fmt: skip


def run(path: Path, setting: Setting, num_nodes: int, seed: int) -> Run:
    fleet = Fleet(
        engine=engine(), num_nodes=num_nodes, routing=setting.routing, can_pull=setting.can_pull,
        lead_s=setting.lead_s, nodes_per_machine=2, num_gateways=2, host_bytes=256 * 10**9, tokens_per_key=512,
        max_prefixes=1 << 19,
    )  # fmt: skip
    trace = mooncake_trace(path, 0)
    begin = time.process_time()
    result = simulate_fleet(fleet, trace, num_copies=num_nodes, num_common_keys=1, spread_s=60.0, seed=seed)
    cpu_s = time.process_time() - begin
    return Run(result.report(TARGET_S, warm_up_s=WARM_UP_S), len(result.arrival_s), cpu_s)


def table(runs: dict[str, list[Run]]) -> Table:
    columns = [
        Column("routing"), Column("prompt from cache", "percent"), Column("TTFT p50 (ms)", "0"),
        Column("TTFT p99 (ms)", "0"), Column("E2E mean (s)"), Column("pulled (GiB)", "0"),
        Column("busiest over mean"), Column("CPU (s)", "0"), Column("most requests over mean", "2", True),
        Column("sessions moved", "percent", True), Column("requests (M)", "1", True),
    ]  # fmt: skip
    fields = ("cached_prompt_ratio", "ttft_p50_ms", "ttft_p99_ms", "e2e_mean_s", "pulled_gib", "busy_spread")
    rows: list[list[Cell]] = []
    for name, found in runs.items():
        reports = [one.report for one in found]
        rows.append([
            name, *(spread([getattr(report, field) for report in reports]) for field in fields),
            spread([one.cpu_s for one in found]), spread([report.request_spread for report in reports]),
            spread([report.moved_ratio for report in reports]), found[0].num_requests / 1e6,
        ])  # fmt: skip
    return Table("The hour", columns, rows)


def ratios(runs: dict[str, list[Run]]) -> Table:
    columns = [Column("advised over"), Column("TTFT p50"), Column("TTFT p99"), Column("E2E mean")]
    rows: list[list[Cell]] = []
    for name in BASELINES:
        pairs = list(zip(runs["advised"], runs[name], strict=True))
        rows.append([name, *(
            ratio_text([getattr(a.report, field) / getattr(b.report, field) for a, b in pairs])
            for field in ("ttft_p50_ms", "ttft_p99_ms", "e2e_mean_s")
        )])  # fmt: skip
    note = "Geometric mean over paired seeds, and its 95 % interval (Student's t of the logarithms)."
    return Table("Ratios, the same arrivals for both", columns, rows, note)


def build(mooncake: Path, scale: Scale, processes: int, seeds: int | None) -> Document:
    settings = [setting for setting in SETTINGS if setting.name in NAMES]
    jobs = {
        (setting.name, seed): partial(run, mooncake, setting, scale.num_nodes, seed)
        for setting in settings
        for seed in range(seeds or scale.num_seeds)
    }
    runs: dict[str, list[Run]] = {}
    for (name, _), found in run_all(jobs, processes, "hours").items():
        runs.setdefault(name, []).append(found)
    title = f"An hour of {scale.num_nodes} nodes under {scale.num_nodes} times a recorded rate"
    document = Document("fleet_hour", title, list(ABOUT))
    document.engines = "engines by rate"
    document.cost_models = {engine().cost.name}
    document.tables = [ratios(runs), table(runs)]
    document.panels = [panel(runs, "TTFT p99", "ttft_p99_ms"), panel(runs, "TTFT p50", "ttft_p50_ms")]
    return document


def panel(runs: dict[str, list[Run]], title: str, field: str) -> Panel:
    def mean(name: str) -> float:
        return float(np.mean([getattr(one.report, field) for one in runs[name]]))

    series = [Series(name, [], [mean(name) / mean("sticky")]) for name in runs]
    return Panel(title, "", "times that of sticky", series, ticks=["an hour"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--mooncake", type=Path, required=True)
    args, rest = parser.parse_known_args(arguments)
    return run_study(__doc__ or "", FULL, QUICK, partial(build, args.mooncake), rest)


if __name__ == "__main__":
    sys.exit(main())
