"""`hocket plan --routing NAME`: how many nodes a trace needs, its requests routed one by one as by a gateway."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from gateway.cli.simulation_options import percent
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.fleet.sizing import NodesPlan, NodesTrial, least_nodes
from schedcore.simulation.planning.fleet import Traffic
from schedcore.simulation.planning.hardware import Hardware


def plan_nodes(
    args: argparse.Namespace, traffic: Traffic, kinds: Sequence[tuple[Hardware, SimulatedEngine]]
) -> NodesPlan:
    """Raises ValueError for what a fleet by rate does not know."""
    if args.ttft_ms is None or args.itl_ms is not None or args.tpot_ms is not None:
        raise ValueError("with --routing engines are modelled by rate: give --ttft-ms, and no other target")
    if args.offline is not None or args.plot is not None:
        raise ValueError("with --routing engines are modelled by rate: without --offline and --plot")
    return least_nodes(
        traffic, kinds, routing=args.routing, ttft_target_s=args.ttft_ms / 1000, attainment=args.attainment,
        max_gpus=args.max_gpus, host_bytes=args.host_cache,
    )  # fmt: skip


def print_nodes(plan: NodesPlan, console: Console) -> None:
    console.print(
        f"Simulated, not measured: engines by rate, routing {plan.routing} as in the gateway; TTFT of "
        f"{plan.ttft_target_ms:g} ms for {percent(plan.attainment_target_ratio)} of requests."
    )
    table = Table()
    for name in ("node", "nodes", "GPUs", "attained", "TTFT p99 (ms)", "prompt from cache", "busy", ""):
        table.add_column(name, justify="right")
    for trial in plan.trials:
        table.add_row(*_cells(trial, is_least=trial == plan.least))
    console.print(table)


def _cells(trial: NodesTrial, *, is_least: bool) -> list[str]:
    report = trial.report
    verdict = "least" if is_least else "enough" if trial.is_enough else "too few"
    return [
        trial.hardware, str(trial.num_nodes), str(trial.num_gpus), percent(report.ttft_attained_ratio),
        f"{report.ttft_p99_ms:.0f}", percent(report.cached_prompt_ratio), percent(report.busy_ratio), verdict,
    ]  # fmt: skip
