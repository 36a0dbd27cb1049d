"""`hocket simulate --cluster N`: a trace on N engines behind the gateway's router, one column per routing."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from gateway.cli.options import size_in_bytes
from gateway.cli.simulation_options import percent, positive_int, progress_bar, seconds
from schedcore.routing.route import ROUTINGS
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.fleet.fleet import Fleet, FleetReport, fleet_trace, simulate_fleet
from schedcore.simulation.workloads.workload import Workload

DEFAULT_ROUTINGS = ("advised",)


def add_cluster_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--cluster", type=positive_int, metavar="N", help="N engines, modelled by rate, behind the gateway's router"
    )
    add_routing_option(group, f"repeat to compare (default: {', '.join(DEFAULT_ROUTINGS)})", action="append")
    group.add_argument("--gateways", type=positive_int, default=1, metavar="N", help="that share the load (default: 1)")
    group.add_argument(
        "--report-interval-s", type=seconds, default=0.25, metavar="S", help="between nodes' reports (default: 0.25)"
    )
    group.add_argument(
        "--lead-s", type=seconds, default=0.0, metavar="S", help="advisories: so long before a follow-up (default: 0)"
    )
    add_host_cache_option(group)


def add_routing_option(group: argparse._ArgumentGroup, help_text: str, *, action: str = "store") -> None:
    group.add_argument("--routing", action=action, choices=ROUTINGS, help=help_text)


def add_host_cache_option(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host-cache", type=size_in_bytes, default=0, metavar="SIZE", help="of each engine, below its device"
    )


def compare(
    args: argparse.Namespace, engine: SimulatedEngine, workload: Workload, session_numbers: np.ndarray | None
) -> dict[str, FleetReport]:
    """Raises ValueError for what a fleet by rate does not know."""
    if args.policy or args.offline or args.plot:
        raise ValueError("engines of a --cluster are modelled by rate: without --policy, --offline and --plot")
    sessions = np.arange(len(workload)) if session_numbers is None else session_numbers
    target = float("inf") if args.ttft_ms is None else args.ttft_ms / 1000
    reports = {}
    for routing in args.routing or DEFAULT_ROUTINGS:
        fleet = Fleet(
            engine=engine, num_nodes=args.cluster, routing=routing, num_gateways=args.gateways,
            host_bytes=args.host_cache, report_interval_s=args.report_interval_s,
            report_delay_s=args.report_interval_s / 5, lead_s=args.lead_s, ttft_target_s=target,
        )  # fmt: skip
        trace = fleet_trace(workload, sessions, fleet.tokens_per_key)
        with progress_bar(routing) as report:
            reports[routing] = simulate_fleet(fleet, trace, seed=args.seed, on_progress=report).report(target)
    return reports


def print_reports(reports: dict[str, FleetReport], num_nodes: int, engine: SimulatedEngine, console: Console) -> None:
    console.print(
        f"Simulated, not measured: {engine.model.name}, cost model {engine.cost.name}, engines by rate, "
        "routing as in the gateway."
    )
    first = next(iter(reports.values()))
    table = Table(title=f"{num_nodes} nodes, {first.num_requests} requests")
    table.add_column(no_wrap=True)
    for routing in reports:
        table.add_column(routing, justify="right", overflow="fold")
    for label, cell in ROWS:
        table.add_row(label, *(cell(report) for report in reports.values()))
    console.print(table)


ROWS: list[tuple[str, Callable[[FleetReport], str]]] = [
    ("TTFT attained", lambda r: percent(r.ttft_attained_ratio)),
    ("TTFT p50 / p99 (ms)", lambda r: f"{r.ttft_p50_ms:.0f} / {r.ttft_p99_ms:.0f}"),
    ("TPOT p50 (ms)", lambda r: f"{r.tpot_p50_ms:.1f}"),
    ("E2E mean (s)", lambda r: f"{r.e2e_mean_s:.2f}"),
    ("requests/s", lambda r: f"{r.requests_per_second:.2f}"),
    ("prompt from cache", lambda r: percent(r.cached_prompt_ratio)),
    ("pulled (GiB)", lambda r: f"{r.pulled_gib:.1f}"),
    ("sessions moved", lambda r: percent(r.moved_ratio)),
    ("busy", lambda r: percent(r.busy_ratio)),
    ("busiest node / mean", lambda r: f"{r.busy_spread:.2f}"),
    ("most requests / mean", lambda r: f"{r.request_spread:.2f}"),
]
