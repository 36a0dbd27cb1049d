"""`hocket simulate`: a workload on a simulated engine under one or more policies, as a table, JSON or a plot.

The scheduler is the real one; the time of a step comes from a latency profile. schedcore/simulation does the work.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gateway.cli.clusters.compared import add_cluster_options, compare, print_reports
from gateway.cli.options import size_in_bytes
from gateway.cli.parser import examples, said
from gateway.cli.replay import check_alone, run_replay
from gateway.cli.simulation_options import (
    POLICY_SYNTAX,
    TRACE_HELP,
    PolicyChoice,
    add_model_option,
    add_scheduler_options,
    add_target_options,
    fitting_trace,
    number,
    percent,
    positive_int,
    progress_bar,
    scheduler_options,
    seconds,
    targets,
    write_json,
)
from schedcore.api.config import POLICIES
from schedcore.api.types import RequestClass
from schedcore.simulation.cost_model import find_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.plots import check_format, save_plot
from schedcore.simulation.report import ClassReport, Distribution, Report, make_report
from schedcore.simulation.simulator import SimulationResult, simulate
from schedcore.simulation.workloads import arrivals
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.traces import read_trace
from schedcore.simulation.workloads.workload import Workload, make_workload

DEFAULT_NUM_REQUESTS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = examples(
        "hocket simulate --lengths 512:128 --arrivals poisson:4 --policy fcfs --policy hocket",
        "hocket simulate --replay decisions.record",
        "hocket simulate --trace day.csv --cluster 8 --routing advised --routing sticky --ttft-ms 1000",
    )
    _add_workload_options(parser.add_argument_group("workload"))
    _add_engine_options(parser.add_argument_group("engine"))
    add_cluster_options(parser.add_argument_group("cluster"))
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="reports as JSON on stdout instead of a table")
    group.add_argument("--plot", type=Path, metavar="FILE", help="draw TTFT, ITL and the queue: .svg, .png or .pdf")


def _add_workload_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--trace", type=Path, metavar="FILE", help=TRACE_HELP)
    group.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="a decision record (hocket serve --decision-record): repeat its calls and compare the decisions, exit "
        "status 1 if one differs; with --policy: serve its requests again under that policy",
    )
    group.add_argument(
        "--lengths", metavar="FILE|IN:OUT", help="draw independent requests from a trace's lengths, or all alike"
    )
    group.add_argument(
        "--arrivals",
        type=_arrival_process,
        metavar="PROCESS",
        help=f"{arrivals.SYNTAX}; with --trace: instead of its times, sessions turn by turn",
    )
    group.add_argument("--num-requests", type=positive_int, metavar="N", help="only so many (with --lengths: 1000)")
    group.add_argument(
        "--think-s", type=seconds, default=10.0, metavar="S", help="mean pause between turns (default: 10)"
    )
    group.add_argument(
        "--jitter-s", type=seconds, default=0.0, metavar="S", help="spread recorded times by up to so much"
    )
    group.add_argument(
        "--offline",
        type=Path,
        metavar="FILE",
        help="a trace whose requests wait from the start, as offline work of priority 1 (online: 0)",
    )
    add_target_options(group)
    group.add_argument("--seed", type=int, default=0, help="of arrivals, lengths and pauses (default: 0)")


def _add_engine_options(group: argparse._ArgumentGroup) -> None:
    add_model_option(group)
    group.add_argument("--gpu", default="a100", help="a100, h100, or a profile's JSON file (default: a100)")
    group.add_argument("--num-gpus", type=positive_int, default=1, metavar="N", help="tensor parallel (default: 1)")
    group.add_argument(
        "--memory", type=size_in_bytes, default=80 * 2**30, metavar="SIZE", help="of each GPU (default: 80G)"
    )
    group.add_argument(
        "--policy",
        action="append",
        type=PolicyChoice.parse,
        metavar=POLICY_SYNTAX,
        help=f"{', '.join(POLICIES)}, with settings of the scheduler if need be; repeat to compare (default: hocket)",
    )
    group.add_argument(
        "--step-errors",
        action="store_true",
        help="draw true step times from the profile's measured errors, and let the scheduler learn, as it does live",
    )
    add_scheduler_options(group)


def run(args: argparse.Namespace) -> int:
    """The exit status."""
    try:
        if args.replay is not None:
            check_alone(args)
            return run_replay(args.replay, args.policy or [], as_json=args.json)
        if args.cluster is not None:
            return run_cluster(args)
        if args.plot is not None:
            check_format(args.plot)
        results = run_all(args)
        reports = {name: make_report(result) for name, result in results.items()}
        if args.plot is not None:
            save_plot(results, args.plot)
    except (ValueError, OSError, ImportError) as error:
        print(f"hocket simulate: {said(error)}", file=sys.stderr)
        return 1
    if args.json:
        write_json(reports)
    else:
        print_tables(reports, Console())
    return 0


def run_cluster(args: argparse.Namespace) -> int:
    """Raises ValueError, OSError."""
    engine = make_engine(args)
    workload = make_run_workload(args, engine.context_length)
    sessions = None
    if args.trace is not None:
        trace = read_trace(args.trace).fitting(engine.context_length)
        sessions = (trace if args.num_requests is None else trace.head(args.num_requests)).session_numbers
    reports = compare(args, engine, workload, sessions)
    if args.json:
        write_json(reports)
    else:
        print_reports(reports, args.cluster, engine, Console())
    return 0


def make_engine(args: argparse.Namespace) -> SimulatedEngine:
    shape = model_shape(args.model)
    return SimulatedEngine(
        model=shape,
        cost=find_cost(shape, args.gpu, args.num_gpus),
        memory_bytes=args.memory * args.num_gpus,
        max_model_len=args.max_model_len,
        block_size=args.block_size,
        options=scheduler_options(args),
        draw_errors=args.step_errors,
    )


def run_all(args: argparse.Namespace) -> dict[str, SimulationResult]:
    """One result per policy. Raises ValueError, OSError."""
    engine = make_engine(args)
    workload = make_run_workload(args, engine.context_length)
    results = {}
    for choice in args.policy or [PolicyChoice.parse("hocket")]:
        chosen = engine.with_policy(choice.policy, **choice.options)
        with progress_bar(choice.label) as report:
            results[choice.label] = simulate(workload, chosen, on_progress=report, error_seed=args.seed)
    return results


def make_run_workload(args: argparse.Namespace, context_length: int) -> Workload:
    """Without requests that the context cannot hold; says how many those are. Raises ValueError, OSError."""
    workload = online_workload(args, context_length).with_targets(*targets(args))
    if args.offline is not None:
        pool = fitting_trace(args.offline, context_length, args.command).batch_workload()
        workload = workload.merged(pool.with_class(RequestClass.OFFLINE).with_priority(1))
    if not len(workload):
        raise ValueError("no request is left to simulate")
    return workload


def online_workload(args: argparse.Namespace, context_length: int) -> Workload:
    if (args.trace is None) == (args.lengths is None):
        raise ValueError("say what arrives: either --trace or --lengths")
    if args.trace is not None:
        trace = fitting_trace(args.trace, context_length, args.command)
        if args.arrivals is not None:
            pace, n = args.arrivals, args.num_requests
            return trace.paced_workload(pace, think_s=args.think_s, num_requests=n, seed=args.seed)
        chosen = trace if args.num_requests is None else trace.head(args.num_requests)
        return chosen.workload(jitter_s=args.jitter_s, seed=args.seed)
    if args.arrivals is None:
        raise ValueError("--lengths needs --arrivals")
    num_requests = args.num_requests or DEFAULT_NUM_REQUESTS
    if alike := _alike(args.lengths):
        prompts = Prompts.unrelated([alike[0]] * num_requests)
        times = args.arrivals.times(num_requests, args.seed)
        return make_workload(times, prompts, [alike[1]] * num_requests, source=args.lengths)
    trace = fitting_trace(Path(args.lengths), context_length, args.command)
    return trace.sampled_workload(args.arrivals, num_requests, args.seed)


def _alike(lengths: str) -> tuple[int, int] | None:
    parts = lengths.split(":")
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        return None
    if not all(int(part) >= 1 for part in parts):
        raise ValueError("--lengths: a request has at least one input and one output token")
    return int(parts[0]), int(parts[1])


# ---- tables ----

Row = tuple[str, Callable[[ClassReport], str]]


def print_tables(reports: dict[str, Report], console: Console) -> None:
    """One table per request class, one column per policy."""
    first = next(iter(reports.values()))
    console.print(f"Simulated, not measured: {first.model}, cost model {first.cost_model}, workload {first.workload}.")
    for of_class in first.classes:
        request_class = RequestClass[of_class.request_class.upper()]
        table = columns(reports, f"{of_class.request_class}, {of_class.num_requests} requests")
        for label, cell in rows():
            table.add_row(label, *(cell(report.of(request_class)) for report in reports.values()))
        console.print(table)
    table = columns(reports, "engine")
    for label, values in engine_rows(list(reports.values())):
        table.add_row(label, *values)
    console.print(table)


def columns(reports: dict[str, Report], title: str) -> Table:
    table = Table(title=title)
    table.add_column(no_wrap=True)
    for label in reports:
        table.add_column(label, justify="right", overflow="fold")
    return table


def rows() -> list[Row]:
    return [
        ("SLO attainment", lambda r: percent(r.slo_attainment_ratio)),
        ("  TTFT / ITL / TPOT", _attained_by_target),
        ("goodput (requests/s)", lambda r: number(r.goodput)),
        ("finished (requests/s)", lambda r: number(r.requests_per_second)),
        ("output (tokens/s)", lambda r: f"{r.output_tokens_per_second:.0f}"),
        ("TTFT p50 / p99 (ms)", lambda r: percentiles(r.ttft_ms)),
        ("ITL p50 / p99 (ms)", lambda r: percentiles(r.itl_ms)),
        ("TPOT p50 / p99 (ms)", lambda r: percentiles(r.tpot_ms)),
        ("E2E p50 / p99 (ms)", lambda r: percentiles(r.e2e_ms)),
        ("prompt from cache", lambda r: percent(r.cached_prompt_ratio)),
        ("preemptions", lambda r: str(r.num_preemptions)),
        ("refused", lambda r: str(r.num_refused)),
    ]


def _attained_by_target(report: ClassReport) -> str:
    ratios = (report.ttft_attainment_ratio, report.itl_attainment_ratio, report.tpot_attainment_ratio)
    return " / ".join(map(percent, ratios))


def engine_rows(reports: Sequence[Report]) -> list[tuple[str, list[str]]]:
    return [
        ("simulated time (s)", [f"{r.duration_s:.1f}" for r in reports]),
        ("busy", [percent(r.busy_ratio) for r in reports]),
        ("steps", [str(r.num_steps) for r in reports]),
        ("step (ms)", [f"{r.mean_step_ms:.2f}" for r in reports]),
        ("requests per step", [f"{r.mean_seqs:.1f}" for r in reports]),
        ("tokens per step", [f"{r.mean_tokens:.1f}" for r in reports]),
    ]


def percentiles(distribution: Distribution | None) -> str:
    return "–" if distribution is None else f"{distribution.p50:.0f} / {distribution.p99:.0f}"


# ---- values of options ----


def _arrival_process(text: str) -> ArrivalProcess:
    try:
        return ArrivalProcess.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
