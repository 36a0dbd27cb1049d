"""All four papers at once on a small pool, and without each of them, live: how often does which act, and what for?

    python -m bench.run.all_four                        # the 100m model, 12 minutes; docs/results/all_four_live.md
    python -m bench.run.all_four --quick --output /tmp  # two minutes, to see whether everything works

The live half of bench/studies/united/all_four.py. Users who come back with their conversation and say so when they
begin to type (bench/lib/load/session_load.py), single requests in bursts (gamma), and a batch of questions about
documents, on the 100 M model, whose hidden states take half of K and V. Every setting has a server and a data directory
of its own, and the same arrivals; nobody is refused (--max-ttft-ms 0). Attained: of single requests; users have a time
to the first token each.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from bench.lib import contestants, results
from bench.lib.load.live_load import Addressee, bodies, drive
from bench.lib.load.load_client import LoadClient
from bench.lib.load.load_report import distribution, ratio
from bench.lib.load.request_trace import RequestTrace
from bench.lib.load.session_load import Habits, Scales, Turn, run_users
from bench.lib.load.slo import Targets, attainment
from bench.lib.load.workload import fitted_workload
from bench.lib.server.cpu_use import read_cpu_use
from bench.lib.server.data_server import DataServer
from bench.lib.server.offline_batch import OfflineProgress, SharedDocuments, read_progress, submit
from bench.lib.server.server_process import ServerProcess
from bench.lib.table import render, wrapped
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import Workload, make_workload

WARM_UP_SECONDS = 10.0  # of users and offline work, before the first single request
LIMITS = "--max-ttft-ms 0 --max-advisories-per-second 1000 --max-advisory-bytes-per-second 64M"
FORMS, SOLVER, TIER = "--cache-kinds auto", "--partial-caching", "--host-cache-bytes {host}"
NO_KNAPSACK = "--scheduler-option enable_residents=false"
ECHO_PARTS = ("enable_plan_search", "enable_task_aware_eviction", "enable_reserve")
NO_ECHO = " ".join(f"--scheduler-option {name}=false" for name in ECHO_PARTS)


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    options: str  # of hocket serve
    advises: bool = True


ALL = Setting("all four", f"{FORMS} {SOLVER} {TIER}")
SETTINGS = (
    ALL,
    Setting("less Apt-Serve", f"{SOLVER} {TIER} {NO_KNAPSACK}"),
    Setting("less hidden states", f"{SOLVER} {TIER}"),
    Setting("less Echo", f"{FORMS} {SOLVER} {TIER} {NO_ECHO}"),
    Setting("less eLLM", f"{FORMS} {TIER}"),
    Setting("less advisories", f"{FORMS} {SOLVER} {TIER}", advises=False),
    Setting("less Symphony", f"{FORMS} {SOLVER} --host-cache-bytes 0", advises=False),
    Setting("none", f"{NO_KNAPSACK} {NO_ECHO} --host-cache-bytes 0", advises=False),
    Setting("priority", f"--scheduling-policy priority {TIER}", advises=False),
    Setting("fcfs", f"--scheduling-policy fcfs {TIER}", advises=False),
)
COUNTERS = (
    "hocket_class_preemptions_total",
    "hocket_cache_conversions_total",
    "hocket_solver_steps_total",
    "hocket_tier_hit_tokens_total",
    "hocket_restores_total",
    "hocket_prepared_tokens_total",
)


class Counts(msgspec.Struct, frozen=True):
    """Of the run, by the value of the only label."""

    steps: dict[str, float]  # by what the b/r solver said
    preemptions: dict[str, float]  # by class
    conversions: dict[str, float]
    tier_hits: dict[str, float]  # tokens
    restores: float
    prepared: float  # tokens


class Measurement(msgspec.Struct, frozen=True):
    setting: str
    num_singles: int
    attained: float
    ttft_p99_ms: float
    itl_p99_ms: float
    num_turns: int  # with a history
    turn_ttft_p50_ms: float
    turn_ttft_p99_ms: float
    turns_cached: float  # share of their prompts' tokens
    rows_per_second: float
    rows_cached: float
    counts: Counts
    noise_ratio: float
    num_errors: int


def read_counters(server: ServerProcess) -> dict[str, dict[str, float]]:
    """By name and by the value of the only label, "" where there is none."""
    found: dict[str, dict[str, float]] = {name: {} for name in COUNTERS}
    for family in text_string_to_metric_families(server.metrics_text()):
        for sample in family.samples:
            if sample.name in found:
                found[sample.name]["".join(sample.labels.values())] = sample.value
    return found


def counts_between(before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]) -> Counts:
    grown = {
        name: {label: value - before[name].get(label, 0.0) for label, value in of_name.items()}
        for name, of_name in after.items()
    }
    preemptions, conversions, steps, hits, restores, prepared = (grown[name] for name in COUNTERS)
    return Counts(steps, preemptions, conversions, hits, sum(restores.values()), sum(prepared.values()))


class Bench:
    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self._folder, self._arguments = folder, arguments
        self._shape = fitted_workload(folder, *arguments.online_len)
        self._targets = Targets(arguments.ttft_ms, arguments.itl_ms)

    def measure(self, setting: Setting) -> Measurement:
        args = self._arguments
        options = setting.options.format(host=args.host)
        if "--scheduling-policy" not in options:
            options += f" --ttft-target-ms {args.ttft_ms:g} --itl-target-ms {args.itl_ms:g}"
        command = f"{args.server_command} {options} --kv-cache-memory-bytes {args.cache} {LIMITS}"
        log = contestants.RESULTS / f"all-four-{setting.name.replace(' ', '-')}.log"
        with DataServer(setting.name, command, shlex.quote(str(self._folder)), log) as server:
            submit(server, SharedDocuments(args.rows, args.documents, *args.offline_len, self._shape.vocab_size))
            return uvloop.run(self._run(server, setting))

    def _singles(self) -> Workload:
        args = self._arguments
        process = ArrivalProcess(args.rate, args.cv)
        times = process.times(4 * process.num_in(args.seconds) + 100, args.seed)
        times = times[times <= args.seconds]
        prompts = Prompts.unrelated(np.full(times.size, self._shape.prompt_len))
        return make_workload(times, prompts, np.full(times.size, self._shape.output_len))

    async def _run(self, server: ServerProcess, setting: Setting) -> Measurement:
        args, workload = self._arguments, self._singles()
        habits = Habits(advises=setting.advises, sends_drafts=setting.advises)
        users = asyncio.create_task(
            run_users(
                server.base_url, args.users, self._shape.vocab_size, Scales(), habits, WARM_UP_SECONDS, args.seconds
            )
        )
        async with LoadClient(server.base_url) as client:
            asked = bodies(workload, Addressee(await client.model_name(), self._shape.vocab_size))
            await asyncio.sleep(WARM_UP_SECONDS)
            cpu, first = read_cpu_use(server), await asyncio.to_thread(read_progress, server)
            before = await asyncio.to_thread(read_counters, server)
            traces = await drive(client, workload, asked)
            turns = await users
            after = await asyncio.to_thread(read_counters, server)
            last = await asyncio.to_thread(read_progress, server)
            noise = read_cpu_use(server).since(cpu).noise_ratio
        return self._measurement(setting, traces, turns, (first, last), counts_between(before, after), noise)

    def _measurement(
        self,
        setting: Setting,
        traces: Sequence[RequestTrace],
        turns: Sequence[Turn],
        progress: tuple[OfflineProgress, OfflineProgress],
        counts: Counts,
        noise: float,
    ) -> Measurement:
        first, last = progress
        good = [trace for trace in traces if not trace.error]
        later = [turn for turn in turns if turn.is_follow_up]
        ttft, itl = distribution([t.ttft for t in good]), distribution([gap for t in good for gap in t.itls])
        of_turns = distribution([turn.ttft for turn in later])
        num_prompt = last.num_prompt_tokens - first.num_prompt_tokens
        return Measurement(
            setting.name,
            len(traces),
            attainment(traces, self._targets).both,
            ttft.p99 if ttft else 0.0,
            itl.p99 if itl else 0.0,
            len(later),
            of_turns.p50 if of_turns else 0.0,
            of_turns.p99 if of_turns else 0.0,
            ratio(sum(turn.num_cached for turn in later), sum(turn.num_prompt for turn in later)),
            ratio(last.num_rows - first.num_rows, last.at - first.at),
            ratio(last.num_cached_tokens - first.num_cached_tokens, num_prompt),
            counts,
            noise,
            len(traces) - len(good),
        )


def mean_of(measurements: Sequence[Measurement]) -> list[str]:
    """Of one setting: a row of the table of results."""

    def mean(name: str) -> float:
        return float(np.mean([getattr(m, name) for m in measurements]))

    return [
        measurements[0].setting,
        f"{100 * mean('attained'):.1f}",
        f"{mean('ttft_p99_ms'):.0f} / {mean('itl_p99_ms'):.0f}",
        f"{mean('turn_ttft_p50_ms'):.0f} / {mean('turn_ttft_p99_ms'):.0f}",
        f"{100 * mean('turns_cached'):.0f} / {100 * mean('rows_cached'):.0f}",
        f"{mean('rows_per_second'):.2f}",
        f"{mean('noise_ratio'):.0%}",
        f"{sum(m.num_errors for m in measurements)}",
    ]


def acts_of(measurements: Sequence[Measurement]) -> list[str]:
    """How often what acted, per run."""

    def mean(values: Sequence[float]) -> float:
        return float(np.mean(values))

    def words(field: str, skipped: str = "") -> str:
        labels = {label: None for m in measurements for label in getattr(m.counts, field)}
        found = {label: mean([getattr(m.counts, field).get(label, 0.0) for m in measurements]) for label in labels}
        return ", ".join(f"{label} {value:.0f}" for label, value in found.items() if value and label != skipped) or "-"

    return [
        measurements[0].setting,
        words("preemptions"),
        words("conversions"),
        words("steps", skipped="not_allowed"),
        words("tier_hits"),
        " / ".join(f"{mean([getattr(m.counts, name) for m in measurements]):.0f}" for name in ("restores", "prepared")),
    ]


def describe(
    measurements: Sequence[Measurement],
    arguments: argparse.Namespace,
    machine: results.Machine,
    date: str,
    command: str,
) -> str:
    document, question, output = arguments.offline_len
    by_setting = [[m for m in measurements if m.setting == setting.name] for setting in SETTINGS]
    by_setting = [found for found in by_setting if found]
    results_header = [
        "setting", "attained %", "TTFT / ITL p99", "turns' TTFT p50 / p99", "from cache %, turns / rows", "rows/s",
        "noise %", "errors",
    ]  # fmt: skip
    acts_header = [
        "setting", "gave way", "changed form", "steps, by the solver's word", "found (tokens)",
        "waits for the host / tokens prepared",
    ]  # fmt: skip
    lines = [
        "# All four papers at once, and without each of them, live",
        "",
        f"**Measured.** `{command}`, {date[:10]}, commit {results.commit()}; {machine.cpu}, {machine.num_cores} cores, "
        f"load average before {machine.load_average:.2f}. Means of {arguments.repeats} runs of {arguments.seconds:g} "
        "s, settings in turns. Simulated: [all_four.md](all_four.md).",
        "",
        f"{arguments.users} users with conversations (ShareGPT's lengths x 0.25, pauses x 0.05), {arguments.rate:g} "
        f"single requests per second in bursts (CV {arguments.cv:g}), {arguments.online_len[0]} tokens in and "
        f"{arguments.online_len[1]} out, and a batch: {arguments.rows} questions of {question} tokens about "
        f"{arguments.documents} documents of {document}, {output} out. K and V: {arguments.cache} bytes, on the host "
        f"{arguments.host}. Targets, which `hocket` is told: TTFT {arguments.ttft_ms:g} ms, ITL {arguments.itl_ms:g} "
        "ms.",
        "",
        render(results_header, [mean_of(found) for found in by_setting]),
        "",
        "Attained: single requests that met both targets. Turns: of users' second and later questions, milliseconds. "
        "Noise: cores that others used meanwhile.",
        "",
        "How often what acted, per run:",
        "",
        render(acts_header, [acts_of(found) for found in by_setting]),
    ]
    return "\n".join(lines) + "\n"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="100m", help="demo, 15m, 100m, 0.5b or a checkpoint's folder")
    parser.add_argument("--settings", nargs="+", choices=[setting.name for setting in SETTINGS], help="default: all")
    parser.add_argument("--seconds", type=float, default=45.0, help="of single requests, per setting and run")
    parser.add_argument("--repeats", type=int, default=1, help="settings in turns")
    parser.add_argument("--users", type=int, default=14)
    parser.add_argument("--rate", type=float, default=3.0, help="single requests per second")
    parser.add_argument("--cv", type=float, default=4.0, help="of the gaps between them")
    parser.add_argument("--online-len", type=int, nargs=2, default=[128, 48], metavar=("IN", "OUT"))
    parser.add_argument("--ttft-ms", type=float, default=1000.0)
    parser.add_argument("--itl-ms", type=float, default=100.0)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument(
        "--offline-len", type=int, nargs=3, default=[384, 32, 16], metavar=("DOCUMENT", "QUESTION", "OUT")
    )
    parser.add_argument("--cache", default="96M", help="about 2,700 tokens of the 100m model")
    parser.add_argument("--host", default="512M")
    parser.add_argument("--server-command", default=contestants.OUR_COMMAND)
    parser.add_argument("--output", type=Path, default=contestants.ROOT / "docs" / "results")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="short runs, to see whether everything works")
    args = parser.parse_args(arguments)
    if args.quick:
        args.seconds, args.repeats, args.rows = 5.0, 1, 300
        args.settings = args.settings or [ALL.name, "none"]
    return args


def main() -> None:
    contestants.prepare_process()
    arguments = parse_arguments()
    contestants.RESULTS.mkdir(parents=True, exist_ok=True)
    date, machine, folder = results.now(), results.this_machine(), contestants.model_folder(arguments.model)
    bench, measurements = Bench(folder, arguments), []
    chosen = [setting for setting in SETTINGS if not arguments.settings or setting.name in arguments.settings]
    for _ in range(arguments.repeats):
        for setting in chosen:
            measurements.append(bench.measure(setting))
            print(f"{setting.name}: attained {measurements[-1].attained:.1%}", file=sys.stderr)
    raw = contestants.RESULTS / f"all-four-{date.replace(':', '')}.json"
    raw.write_bytes(msgspec.json.format(msgspec.json.encode(measurements)))
    command = shlex.join(["python", "-m", "bench.run.all_four", *sys.argv[1:]])
    page = describe(measurements, arguments, machine, date, command)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "all_four_live.md").write_text(wrapped(page))
    print(f"\n{page}")


if __name__ == "__main__":
    main()
