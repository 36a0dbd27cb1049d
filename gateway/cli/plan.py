"""`hocket plan`: the least GPUs that hold online targets at peak, then the offline throughput they leave over a day.

Everything is simulated: schedcore/simulation/planning/planner.py has step one, day.py step two.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gateway.cli.clusters.compared import add_host_cache_option, add_routing_option
from gateway.cli.clusters.needed import plan_nodes, print_nodes
from gateway.cli.options import size_in_bytes
from gateway.cli.parser import examples, said
from gateway.cli.simulation_options import (
    POLICY_SYNTAX,
    TRACE_HELP,
    PolicyChoice,
    add_model_option,
    add_scheduler_options,
    add_target_options,
    fitting_trace,
    new_progress,
    number,
    percent,
    positive_int,
    scheduler_options,
    seconds,
    targets,
    write_json,
)
from schedcore.api.config import POLICIES, EngineConfig
from schedcore.simulation.cost_model import find_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.planning.day import DayReport, IntervalReport, simulate_day
from schedcore.simulation.planning.fleet import Traffic
from schedcore.simulation.planning.hardware import Hardware, find_hardware
from schedcore.simulation.planning.offline_supply import OfflineSupply
from schedcore.simulation.planning.planner import PeakPlan, PeakSearch, Plan, PlanOptions, ProgressFor, Trial
from schedcore.simulation.plots import check_format, save_day_plot
from schedcore.simulation.simulator import Progress

DEFAULTS = PlanOptions()
DEFAULT_DAY_ENGINES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = examples(
        "hocket plan --trace day.csv --model llama-3.1-8b --ttft-ms 1000 --itl-ms 100",
        "hocket plan --trace day.csv --offline bulk.csv --gpu h100 --policy hocket --plot day.svg",
    )
    _add_work_options(parser.add_argument_group("work"))
    _add_search_options(parser.add_argument_group("search"))
    _add_engine_options(parser.add_argument_group("engine"))
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="the plan as JSON on stdout instead of tables")
    group.add_argument("--plot", type=Path, metavar="FILE", help="draw the day: .svg, .png or .pdf")


def _add_work_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--trace", type=Path, required=True, metavar="FILE", help=f"online requests. {TRACE_HELP}")
    group.add_argument("--jitter-s", type=seconds, default=0.0, metavar="S", help="spread recorded times by so much")
    group.add_argument("--seed", type=int, default=0, help="of the jitter (default: 0)")
    group.add_argument("--offline", type=Path, metavar="FILE", help="offline requests, repeated without end")
    group.add_argument("--pool-requests", type=positive_int, metavar="N", help="offline requests that wait at a time")
    add_target_options(group)
    group.add_argument(
        "--attainment",
        type=float,
        default=DEFAULTS.attainment,
        metavar="RATIO",
        help=f"of the online requests at peak, to hold all targets (default: {DEFAULTS.attainment})",
    )


def _add_search_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--gpu", default="all", help="a100, h100, all, or a profile's JSON file (default: all)")
    group.add_argument("--num-gpus", type=positive_int, metavar="N", help="of one engine (default: as profiles have)")
    group.add_argument(
        "--memory",
        type=size_in_bytes,
        action="append",
        metavar="SIZE",
        help="of each GPU; repeatable (default: what is sold)",
    )
    group.add_argument(
        "--price",
        type=_price,
        action="append",
        default=[],
        metavar="GPU=NUMBER",
        help="of a GPU-hour, in any unit; repeatable (default: all the same)",
    )
    group.add_argument(
        "--max-gpus",
        type=positive_int,
        default=DEFAULTS.max_gpus,
        metavar="N",
        help=f"of all engines (default: {DEFAULTS.max_gpus})",
    )
    group.add_argument(
        "--window-s",
        type=seconds,
        default=DEFAULTS.window_s,
        metavar="S",
        help=f"length of the peak (default: {DEFAULTS.window_s:g})",
    )
    group.add_argument(
        "--warmup-s",
        type=seconds,
        default=DEFAULTS.warmup_s,
        metavar="S",
        help=f"of traffic simulated before and behind it (default: {DEFAULTS.warmup_s:g})",
    )
    group.add_argument("--peak-only", action="store_true", help="leave out the day")
    group.add_argument(
        "--day-engines",
        type=positive_int,
        default=DEFAULT_DAY_ENGINES,
        metavar="N",
        help=f"engines that are simulated over the day and stand for all (default: {DEFAULT_DAY_ENGINES})",
    )
    add_routing_option(group, "say how many nodes hold --ttft-ms over the whole trace, routed as a gateway routes them")
    add_host_cache_option(group)
    group.add_argument("--threads", type=positive_int, metavar="N", help="engines simulated at a time (default: cores)")


def _add_engine_options(group: argparse._ArgumentGroup) -> None:
    add_model_option(group)
    default = EngineConfig(model="").policy
    group.add_argument(
        "--policy",
        type=PolicyChoice.parse,
        default=PolicyChoice.parse(default),
        metavar=POLICY_SYNTAX,
        help=f"{', '.join(POLICIES)}, with settings of the scheduler if need be (default: {default})",
    )
    add_scheduler_options(group)


def run(args: argparse.Namespace) -> int:
    """The exit status."""
    try:
        if args.routing is not None:
            return run_nodes(args)
        if args.plot is not None:
            check_format(args.plot)
        plan = make_plan(args)
        if args.plot is not None:
            save_day_plot(plan, args.plot)
    except (ValueError, OSError, ImportError) as error:
        print(f"hocket plan: {said(error)}", file=sys.stderr)
        return 1
    if args.json:
        write_json(plan)
    else:
        print_plan(plan, Console())
    if plan.peak.least is None:
        print(f"hocket plan: {why_nothing(plan)}", file=sys.stderr)
        return 1
    return 0


def run_nodes(args: argparse.Namespace) -> int:
    """Raises ValueError, OSError."""
    traffic = read_traffic(args)
    plan = plan_nodes(args, traffic, [(kind, make_engine(args, kind)) for kind in _hardware(args)])
    if args.json:
        write_json(plan)
    else:
        print_nodes(plan, Console())
    if plan.least is None:
        print(f"hocket plan: not enough within {args.max_gpus} GPUs: raise --max-gpus", file=sys.stderr)
        return 1
    return 0


def context_of(args: argparse.Namespace) -> int:
    return int(args.max_model_len or model_shape(args.model).max_model_len)


def read_traffic(args: argparse.Namespace) -> Traffic:
    """Raises ValueError, OSError."""
    trace = fitting_trace(args.trace, context_of(args), args.command)
    if not trace.has_arrivals:
        raise ValueError(f"{trace.name} has no arrival times, and a peak needs them")
    workload = trace.workload(jitter_s=args.jitter_s, seed=args.seed).with_targets(*targets(args))
    return Traffic.of(workload, trace.session_numbers)


def make_plan(args: argparse.Namespace) -> Plan:
    """Raises ValueError, OSError."""
    options = PlanOptions(
        attainment=args.attainment,
        window_s=args.window_s,
        warmup_s=args.warmup_s,
        max_gpus=args.max_gpus,
        price=_prices(args),
        num_threads=args.threads,
    )
    context_length = context_of(args)
    traffic = read_traffic(args)
    supply = read_supply(args, context_length)
    search = PeakSearch(traffic, _hardware(args), lambda hardware: make_engine(args, hardware), options)
    with progress_by_name() as progress:
        peak, choice = search.run(progress)
        day = None
        if choice is not None and not args.peak_only:
            engine = make_engine(args, choice.hardware)
            day = simulate_day(
                traffic,
                engine,
                choice.num_engines,
                supply,
                max_simulated=args.day_engines,
                on_progress=progress("the whole trace (simulated seconds)"),
                num_threads=options.num_threads,
            )
    least = peak.least
    return Plan(
        model=args.model,
        policy=args.policy.label,
        workload=traffic.workload.source,
        offline=None if supply is None else supply.source.source,
        ttft_target_ms=args.ttft_ms,
        itl_target_ms=args.itl_ms,
        tpot_target_ms=args.tpot_ms,
        attainment_target_ratio=options.attainment,
        peak=peak,
        gpu_hours=None if least is None else least.num_gpus * traffic.duration_s / 3600,
        day=day,
    )


def read_supply(args: argparse.Namespace, context_length: int) -> OfflineSupply | None:
    if args.offline is None:
        return None
    trace = fitting_trace(args.offline, context_length, args.command)
    return OfflineSupply.of(trace.batch_workload(), args.pool_requests)


def make_engine(args: argparse.Namespace, hardware: Hardware) -> SimulatedEngine:
    """Raises ValueError."""
    shape = model_shape(args.model)
    engine = SimulatedEngine(
        model=shape,
        cost=find_cost(shape, hardware.gpu, hardware.num_gpus),
        memory_bytes=hardware.memory_bytes,
        max_model_len=args.max_model_len,
        block_size=args.block_size,
        options=scheduler_options(args),
    )
    return engine.with_policy(args.policy.policy, **args.policy.options)


def _hardware(args: argparse.Namespace) -> list[Hardware]:
    found = find_hardware(args.gpu, args.memory or ())
    chosen = [hardware for hardware in found if args.num_gpus in (None, hardware.num_gpus)]
    if not chosen:
        known = ", ".join(str(n) for n in sorted({hardware.num_gpus for hardware in found}))
        raise ValueError(f"there is no latency profile for {args.num_gpus} x {args.gpu}; engines may have {known} GPUs")
    return chosen


def _prices(args: argparse.Namespace) -> dict[str, float]:
    names = {hardware.gpu.lower(): hardware.gpu for hardware in _hardware(args)}
    unknown = [name for name, _ in args.price if name.lower() not in names]
    if unknown:
        raise ValueError(f"--price: {unknown[0]} is none of the GPUs {', '.join(names.values())}")
    return {names[name.lower()]: price for name, price in args.price}


@contextmanager
def progress_by_name() -> Iterator[ProgressFor]:
    """One bar, which begins anew under each name."""
    with new_progress() as progress:
        task = progress.add_task("peak", total=None)

        def begin(name: str) -> Progress:
            progress.reset(task, description=name, total=None)
            return lambda done, total: progress.update(task, completed=done, total=total)

        yield begin


# ---- tables ----


def print_plan(plan: Plan, console: Console) -> None:
    costs = ", ".join(dict.fromkeys(trial.cost_model for trial in plan.peak.trials)) or "none"
    console.print(f"Simulated, not measured: {plan.model}, policy {plan.policy}. Cost models: {costs}.")
    window = plan.peak.window
    console.print(
        f"Peak of {plan.workload}: {clock(window.start_s)} to {clock(window.end_s)}, {window.num_requests} requests "
        f"({window.requests_per_second:.2f}/s), {window.work_ratio:.1f} times the mean work."
    )
    print_peak(plan.peak, console)
    if plan.peak.least is None:
        return
    least = plan.peak.least
    console.print(
        f"Least resources: {least.num_engines} x ({least.hardware}), together {least.num_gpus} "
        f"GPU{'s' if least.num_gpus > 1 else ''}; {24 * least.num_gpus} GPU-hours a day."
    )
    if plan.day is not None:
        print_day(plan, plan.day, console)


def print_peak(peak: PeakPlan, console: Console) -> None:
    has_prices = any(trial.cost != trial.num_gpus for trial in peak.trials)
    names = ["engines", "GPUs", "attained", "TTFT", "ITL", "TPOT", "busy", "", *(["cost"] if has_prices else [])]
    table = Table(title="tried on the peak", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("engine", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for trial in peak.trials:
        is_least = peak.least is not None and trial == peak.least
        table.add_row(*_trial_cells(trial, is_least)[: len(names) + 1], style="bold" if is_least else None)
    console.print(table)
    by_reason: dict[str, list[str]] = {}
    for rejection in peak.rejections:
        by_reason.setdefault(rejection.reason, []).append(rejection.hardware)
    for reason, hardware in by_reason.items():
        console.print(f"Not {', '.join(hardware)}: {reason}.", highlight=False)


def _trial_cells(trial: Trial, is_least: bool) -> list[str]:
    found = trial.attainment
    return [
        trial.hardware,
        str(trial.num_engines),
        str(trial.num_gpus),
        percent(found.slo_ratio),
        percent(found.ttft_ratio),
        percent(found.itl_ratio),
        percent(found.tpot_ratio),
        percent(trial.busy_ratio),
        "least" if is_least else "enough" if trial.is_enough else "too few",
        f"{trial.cost:g}",
    ]


def print_day(plan: Plan, day: DayReport, console: Console) -> None:
    table = Table(title=f"the whole trace on them, {clock(day.duration_s)}", box=SIMPLE_HEAD, pad_edge=False)
    names = ["from", "online\nrequests/s", "online\nattained"]
    names += ["offline\nrequests/h", "prompt\ntokens/s", "output\ntokens/s"] if plan.offline else []
    for name in names:
        table.add_column(name, justify="right")
    for interval in day.intervals:
        table.add_row(*_interval_cells(interval)[: len(names)])
    console.print(table)
    console.print(
        f"Online: {day.num_online} requests, attainment {percent(day.online_attainment_ratio)} "
        f"(TTFT {percent(day.ttft_attainment_ratio)}, ITL {percent(day.itl_attainment_ratio)}, "
        f"TPOT {percent(day.tpot_attainment_ratio)})."
    )
    if plan.offline:
        console.print(
            f"Offline ({plan.offline}): {day.offline_requests_per_hour:.0f} requests per hour, "
            f"{day.offline_prompt_tokens_per_second:.0f} prompt and {day.offline_output_tokens_per_second:.0f} output "
            f"tokens/s; per engine {day.offline_requests_per_hour_and_engine:.0f} requests per hour, "
            f"{day.offline_tokens_per_second_and_engine:.0f} tokens/s; "
            f"{percent(day.offline_cached_prompt_ratio)} of the prompts from the cache."
        )
    if day.num_simulated_engines < day.num_engines:
        console.print(f"{day.num_simulated_engines} of {day.num_engines} engines were simulated and stand for all.")
    console.print(f"Cost: {number(plan.gpu_hours)} GPU-hours. Engines busy: {percent(day.busy_ratio)}.")
    if (day.online_attainment_ratio or 0.0) < plan.attainment_target_ratio:
        console.print(_warning(plan))


def _warning(plan: Plan) -> str:
    if plan.offline is None:
        return "Over the whole trace the targets are not held: the peak by work is not the hardest stretch."
    return (
        f"Beside offline work, policy {plan.policy} does not hold the targets. Try a --policy that puts online "
        "requests first, or fewer tokens per step (--max-num-batched-tokens)."
    )


def _interval_cells(interval: IntervalReport) -> list[str]:
    return [
        clock(interval.start_s),
        f"{interval.online_requests_per_second:.2f}",
        percent(interval.online_attainment_ratio),
        f"{interval.offline_requests_per_hour:.0f}",
        f"{interval.offline_prompt_tokens_per_second:.0f}",
        f"{interval.offline_output_tokens_per_second:.0f}",
    ]


def why_nothing(plan: Plan) -> str:
    """One line, with the advice that the numbers give."""
    if not plan.peak.trials:
        return f"no hardware can hold the targets: {plan.peak.rejections[0].hardware}: {plan.peak.rejections[0].reason}"
    best = max(plan.peak.trials, key=lambda trial: trial.attainment.slo_ratio)
    found = best.attainment
    advice = "raise --max-gpus or relax the targets"
    if found.itl_ratio < found.ttft_ratio:
        advice += "; fewer tokens per step (--max-num-batched-tokens) shorten ITL"
    return (
        f"nothing that was tried holds the targets for {percent(plan.attainment_target_ratio)} of requests; the best, "
        f"{best.num_engines} x ({best.hardware}), for {percent(found.slo_ratio)}: {advice}"
    )


def clock(time_s: float) -> str:
    """h:mm:ss, without seconds where there are none."""
    minutes, rest = divmod(round(time_s), 60)
    text = f"{minutes // 60}:{minutes % 60:02}"
    return f"{text}:{rest:02}" if rest else text


def _price(text: str) -> tuple[str, float]:
    name, equals, price = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is no GPU=NUMBER")
    return name, float(price)
