"""Does it pay to keep requests as hidden states or in int8, or to recompute some tokens in every step? Live, in bursts.

    python -m bench.run.cache_forms                        # about ten minutes; docs/results/cache_forms.md and .png
    python -m bench.run.cache_forms --quick --output /tmp  # two minutes, to see whether everything works
    python -m bench.run.cache_forms --settings off kinds
    python -m bench.run.cache_forms --settings ratio --behind RAW.json

The 100m model has as many KV heads as heads, so that hidden states take half of K and V. Its pool (--cache) holds a
handful of requests, far fewer than the processor could decode together. Policy hocket with cache kinds and partial
caching off, each alone, and both, and partial caching with copies on the host; single requests in int8, and a cache
that is in int8 throughout; beside it fcfs with K and V, and with every request as hidden states. All without prefix
caching, which partial caching excludes. Steps are calibrated first, steps with hidden-cached tokens among them.

Capacity is what a closed loop of --capacity-concurrency gets through with everything off; arrivals come in bursts
(gamma, --cv) at --loads of it. All settings see the same arrivals, load by load in turns, after the same warm-up.
Targets and attainment: docs/metrics.md.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop

from bench.lib import contestants, results
from bench.lib.load.live_load import Addressee, bodies, drive
from bench.lib.load.load_client import LoadClient, closed_loop
from bench.lib.load.load_report import LoadReport, ratio, summarize
from bench.lib.load.slo import Attainment, Targets, attainment
from bench.lib.load.workload import Workload, fitted_workload
from bench.lib.server.cpu_use import read_cpu_use
from bench.lib.server.form_use import FormSample, FormUse, form_use, read_sample, watch
from bench.lib.server.server_process import ServerProcess
from bench.lib.table import render_part, wrapped, write_csv
from schedcore._core import algorithms
from schedcore.latency.latency_profile import LatencyProfile, load_profile
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import make_workload

OFF, KINDS, RATIO, BOTH, COPIES = "off", "kinds", "ratio", "kinds and ratio", "ratio, host copies"
INT8, INT8_CACHE = "some in int8", "cache in int8"
ALL_KV, ALL_HIDDEN = "fcfs", "fcfs, all hidden"
SETTINGS = {
    OFF: "--scheduling-policy hocket",
    KINDS: "--scheduling-policy hocket --cache-kinds auto",
    RATIO: "--scheduling-policy hocket --partial-caching",
    BOTH: "--scheduling-policy hocket --cache-kinds auto --partial-caching",
    COPIES: "--scheduling-policy hocket --partial-caching --host-cache-bytes 512M",
    INT8: "--scheduling-policy hocket --cache-kinds int8",
    INT8_CACHE: "--scheduling-policy hocket --kv-cache-dtype int8",
    ALL_KV: "--scheduling-policy fcfs",
    ALL_HIDDEN: "--scheduling-policy fcfs --cache-kinds hidden",
}
COMPARED = (
    *((setting, OFF) for setting in (KINDS, RATIO, BOTH, COPIES, INT8, INT8_CACHE)),
    (INT8, INT8_CACHE),
    (ALL_HIDDEN, ALL_KV),
)
SEED_OF_WARM_UP = 99
SURE = 2.0  # standard errors, from which on a difference is one
HEADER = (
    "setting", "load", "attained %", "TTFT %", "ITL %", "goodput/s", "TTFT p50", "p99", "ITL p50", "p99", "tokens/s",
    "most requests", "most tokens", "hidden", "int8", "uncached", "conversions", "preemptions", "noise %", "errors",
)  # fmt: skip
SHOWN = (0, 1, 2, 3, 4, 5, 12, 17)  # on the page


class Measurement(msgspec.Struct, frozen=True):
    setting: str
    load: float  # share of the capacity
    attainment: Attainment
    report: LoadReport
    use: FormUse
    noise_ratio: float


class Document(msgspec.Struct, frozen=True):
    command: str
    date: str
    commit: str
    machine: results.Machine
    model: str
    capacity: float  # requests per second
    targets: Targets
    profile: LatencyProfile
    measurements: list[Measurement]


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Beside `num_decodes` requests, at this context: up to which length one more pays by the measured step times."""

    num_decodes: int
    context: int
    step_seconds: float
    worth_seconds: float  # of one more, in a step
    hidden_tokens: float  # kept as hidden states
    uncached_tokens: float  # recomputed in every step


class CacheForms:
    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._workload = fitted_workload(folder, *arguments.lengths)
        self._num_runs = 0
        self.targets = Targets(arguments.ttft_ms, arguments.itl_ms)

    def warm_up(self, server: ServerProcess) -> None:
        """Until the scheduler knows how long answers get and steps take: a server that does not gives way to bursts."""
        lengths = (self._workload.prompt_len, self._workload.output_len, self._workload.vocab_size)
        with server.turn():
            uvloop.run(self._closed(server, Workload(*lengths, SEED_OF_WARM_UP), self._arguments.capacity_concurrency))

    def capacity(self, server: ServerProcess) -> float:
        """Requests per second of a closed loop."""
        num = self._arguments.capacity_concurrency * self._arguments.capacity_rounds
        with server.turn():
            return uvloop.run(self._closed(server, self._workload, num))

    async def _closed(self, server: ServerProcess, workload: Workload, num: int) -> float:
        async with LoadClient(server.base_url) as client:
            model = await client.model_name()
            asked = [workload.body(i, model) for i in range(num)]
            traces = await closed_loop(client, asked, self._arguments.capacity_concurrency)
            return summarize(traces).requests_per_second

    def measure(self, server: ServerProcess, load: float, rate: float) -> Measurement:
        self._num_runs += 1
        with server.turn():
            found = uvloop.run(self._run(server, load, rate))
        print(
            f"{server.name} at {load:g}: attained {found.attainment.both:.1%}, hidden "
            f"{found.use.num_tokens['hidden']:.0f}, in int8 {found.use.num_tokens['int8']:.0f}, uncached "
            f"{found.use.num_tokens['uncached']:.0f} tokens",
            file=sys.stderr,
        )
        return found

    async def _run(self, server: ServerProcess, load: float, rate: float) -> Measurement:
        args = self._arguments
        process = ArrivalProcess(rate, args.cv)
        num = process.num_in(args.seconds)
        prompts = Prompts.unrelated([self._workload.prompt_len] * num)
        workload = make_workload(process.times(num, args.seed), prompts, [self._workload.output_len] * num)
        async with LoadClient(server.base_url) as client:
            asked = bodies(workload, Addressee(await client.model_name(), self._workload.vocab_size), self._num_runs)
            samples: list[FormSample] = [read_sample(await asyncio.to_thread(server.metrics_text))]
            before, watching = read_cpu_use(server), asyncio.create_task(watch(server, samples))
            traces = await drive(client, workload, asked)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            cpu = read_cpu_use(server).since(before)
            samples.append(read_sample(await asyncio.to_thread(server.metrics_text)))
        report, attained = summarize(traces, cpu.client), attainment(traces, self.targets)
        return Measurement(server.name, load, attained, report, form_use(samples), cpu.noise_ratio)


def _profile_path(folder: Path) -> Path:
    return contestants.RESULTS / f"cache-forms-{folder.name}.latency.json"


def calibrate(folder: Path, arguments: argparse.Namespace) -> None:
    """The profile of an engine as the settings have it."""
    command = [sys.executable, "-m", "gateway.cli.main", "calibrate", str(folder)]
    command += ["--output", str(_profile_path(folder))]
    command += [
        "--seconds",
        f"{arguments.calibration_seconds:g}",
        "--kv-cache-memory-bytes",
        arguments.calibration_cache,
    ]
    command += ["--max-num-seqs", str(arguments.max_num_seqs), "--max-model-len", str(arguments.max_model_len)]
    print(f"calibrating {folder.name}", file=sys.stderr)
    subprocess.run(command, check=True, cwd=contestants.ROOT, stdout=subprocess.DEVNULL)


def commands(profile: Path, arguments: argparse.Namespace) -> dict[str, str]:
    told = arguments.told
    common = (
        f"--no-access-log --no-offline --no-enable-prefix-caching --kv-cache-memory-bytes {arguments.cache} "
        f"--max-num-seqs {arguments.max_num_seqs} --max-model-len {arguments.max_model_len} "
        f"--latency-profile {shlex.quote(str(profile))} "
        f"--ttft-target-ms {told * arguments.ttft_ms:g} --itl-target-ms {told * arguments.itl_ms:g}"
    )
    chosen = {name: options for name, options in SETTINGS.items() if name in arguments.settings}
    return {name: f"{arguments.server_command} {common} {options}" for name, options in chosen.items()}


def break_even(profile: LatencyProfile, num_decodes: int, context: int) -> BreakEven:
    """One more request is worth a step divided by those who wait for it; cpp/core/solvers/knapsack.h has the same."""
    model, batch = profile.to_model(), algorithms.LatencyBatch(context)
    for _ in range(num_decodes):
        batch.add_decode(context)
    step = model.predict(batch.features)
    each = profile.coefficients
    worth = step / (num_decodes + 1)
    hidden, uncached = ratio(worth, each.hidden_token), ratio(worth, each.prefill_token)
    return BreakEven(num_decodes, context, step, worth, hidden, uncached)


def standard_error(a: Attainment, b: Attainment) -> float:
    """Of the difference of two shares."""
    return math.sqrt(sum(x.both * (1 - x.both) / max(1, x.num_requests) for x in (a, b)))


def verdict(document: Document, even: BreakEven) -> list[str]:
    """One line per form and load, and what the measured step times say."""
    by_cell = {(m.setting, m.load): m for m in document.measurements}
    lines = []
    for setting, base in COMPARED:
        for load in dict.fromkeys(m.load for m in document.measurements):
            with_it, without = by_cell.get((setting, load)), by_cell.get((base, load))
            if with_it is not None and without is not None:
                lines.append(f"- {_compare(with_it, without)}")
    step_ms, worth_ms = 1e3 * even.step_seconds, 1e3 * even.worth_seconds
    lines += [
        "",
        f"By the calibrated times, a step of {even.num_decodes} requests that decode at {even.context} tokens takes "
        f"{step_ms:.1f} ms. One request more is worth {worth_ms:.2f} ms in every step: it pays to keep up to "
        f"{even.hidden_tokens:.0f} of its tokens as hidden states, or to recompute up to {even.uncached_tokens:.0f}.",
    ]
    return lines


def _compare(with_it: Measurement, without: Measurement) -> str:
    points = 100 * (with_it.attainment.both - without.attainment.both)
    error = 100 * standard_error(with_it.attainment, without.attainment)
    says = "no difference" if abs(points) < SURE * error or points == 0 else "better" if points > 0 else "worse"
    use = with_it.use
    return (
        f"{with_it.setting} at load {with_it.load:g}: {points:+.1f} ± {error:.1f} points against {without.setting}: "
        f"{says}; at most {use.num_tokens['hidden']:.0f} tokens hidden, {use.num_tokens['int8']:.0f} in int8, "
        f"{use.num_tokens['uncached']:.0f} uncached"
    )


def describe(document: Document, arguments: argparse.Namespace, even: BreakEven) -> str:
    """Markdown. Latencies in milliseconds."""
    machine, targets, each = document.machine, document.targets, document.profile.coefficients
    prompt_len, output_len = arguments.lengths
    lines = [
        "# Live: hidden states, int8 and partial caching under memory pressure",
        "",
        f"**Measured.** `{document.command}`, {document.date[:10]}, commit {document.commit}; {machine.cpu}, "
        f"{machine.num_cores} cores, load average before {machine.load_average:.2f}. Model {document.model}.",
        "",
        f"Pool of {arguments.cache}; {prompt_len} tokens in, {output_len} out; bursts (gamma, CV {arguments.cv:g}) for "
        f"{arguments.seconds:g} s at shares of {document.capacity:.2f} requests/s, which a closed loop of "
        f"{arguments.capacity_concurrency} gets through with everything off; targets TTFT {targets.ttft_ms:g} ms, ITL "
        f"{targets.itl_ms:g} ms, of which the server is told {arguments.told:.0%}. Calibrated: a hidden-cached token "
        f"costs {1e6 * each.hidden_token:.1f} us per step, a recomputed one {1e6 * each.prefill_token:.1f} us; "
        f"predicted step times are off by {document.profile.error.mean:.1%} on average.",
        "",
        "![Attainment by setting and load](cache_forms.png)",
        "",
        render_part(HEADER, rows(document), SHOWN),
        "",
        f"All {len(HEADER)} columns: [cache_forms.csv](cache_forms.csv).",
        "",
        *verdict(document, even),
        "",
        "Most requests, most tokens: running, and stored on the device, at one time. Noise: cores that others used "
        "meanwhile. Latencies in ms. ± is one standard error of the difference; below two of them it is none.",
    ]
    return "\n".join(lines) + "\n"


def _by_setting(m: Measurement) -> tuple[int, float]:
    return list(SETTINGS).index(m.setting), m.load


def rows(document: Document) -> list[list[str]]:
    """As HEADER says."""
    return [_row(m) for m in sorted(document.measurements, key=_by_setting)]


def _row(m: Measurement) -> list[str]:
    report, use = m.report, m.use
    latencies = [
        "-" if value is None else f"{getattr(value, field):.1f}"
        for value in (report.ttft_ms, report.itl_ms)
        for field in ("p50", "p99")
    ]
    shares = [f"{100 * share:.1f}" for share in (m.attainment.both, m.attainment.ttft, m.attainment.itl)]
    counts = [use.num_running, use.num_all_tokens, *(use.num_tokens[kind] for kind in ("hidden", "int8", "uncached"))]
    counts += [use.num_conversions, use.num_preemptions]
    return [
        m.setting,
        f"{m.load:g}",
        *shares,
        f"{m.attainment.goodput:.2f}",
        *latencies,
        f"{report.output_tokens_per_second:.0f}",
        *(f"{count:.0f}" for count in counts),
        f"{m.noise_ratio:.0%}",
        str(report.num_errors),
    ]


def plot(document: Document, target: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    loads = list(dict.fromkeys(m.load for m in document.measurements))
    names = [name for name in SETTINGS if any(m.setting == name for m in document.measurements)]
    width = 0.8 / len(loads)
    with matplotlib.rc_context({"font.size": 9}):
        figure, axis = plt.subplots(figsize=(6.4, 3.4))
        for i, load in enumerate(loads):
            own = {m.setting: 100 * m.attainment.both for m in document.measurements if m.load == load}
            places = [names.index(name) + (i - (len(loads) - 1) / 2) * width for name in own]
            axis.bar(places, list(own.values()), width, label=f"load {load:g}")
        axis.set_xticks(range(len(names)), [name.replace(" ", "\n", 1) for name in names])
        axis.set_ylim(0, 103)
        axis.set_ylabel("requests that met their targets (%)")
        axis.set_title(f"{document.model}, {document.date[:10]}, {document.commit}")
        axis.legend()
        figure.tight_layout()
        figure.savefig(target, dpi=120)
        plt.close(figure)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="100m", help="demo, 15m, 100m, 0.5b or a checkpoint's folder")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="SETTING")
    parser.add_argument("--seconds", type=float, default=25.0, help="of arrivals, per setting and load")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.4, 0.7], help="shares of the capacity")
    parser.add_argument("--capacity", type=float, help="requests per second, instead of measuring it")
    parser.add_argument(
        "--behind", type=Path, help="raw results of a run that this one goes on with: capacity, profile"
    )
    parser.add_argument("--capacity-concurrency", type=int, default=32)
    parser.add_argument("--capacity-rounds", type=int, default=4)
    parser.add_argument("--cache", default="64M", help="the pool: a handful of requests")
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=512, help="context; shorter: calibrated sooner")
    parser.add_argument("--lengths", type=int, nargs=2, default=[128, 96], metavar=("IN", "OUT"))
    parser.add_argument("--cv", type=float, default=5.0, help="burstiness of arrivals")
    parser.add_argument("--ttft-ms", type=float, default=2000.0)
    parser.add_argument("--itl-ms", type=float, default=100.0)
    parser.add_argument("--told", type=float, default=0.8, help="share of the targets that the server is told to hold")
    parser.add_argument("--profile", type=Path, help="that hocket calibrate wrote, instead of calibrating")
    parser.add_argument("--calibration-seconds", type=float, default=30.0)
    parser.add_argument("--calibration-cache", default="128M", help="the pool while calibrating")
    parser.add_argument("--server-command", default=contestants.OUR_COMMAND)
    parser.add_argument("--output", type=Path, default=contestants.ROOT / "docs" / "results")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="short runs, to see whether everything works")
    args = parser.parse_args(arguments)
    if args.quick:
        args.seconds, args.loads, args.calibration_seconds, args.capacity_rounds = 4.0, [0.7], 5.0, 1
    return args


def run(folder: Path, arguments: argparse.Namespace) -> tuple[Document, BreakEven]:
    date, machine = results.now(), results.this_machine()
    earlier = None if arguments.behind is None else msgspec.json.decode(arguments.behind.read_bytes(), type=Document)
    profile_path = arguments.profile or _profile_path(folder)
    if arguments.profile is None and earlier is None:
        calibrate(folder, arguments)
    bench, found = CacheForms(folder, arguments), [] if earlier is None else list(earlier.measurements)
    arguments.capacity = arguments.capacity if earlier is None else earlier.capacity
    with contestants.running(folder, commands(profile_path, arguments)) as servers:
        for server in servers:
            bench.warm_up(server)
        capacity = arguments.capacity or bench.capacity(servers[0])
        print(f"capacity {capacity:.2f} requests/s", file=sys.stderr)
        for load in arguments.loads:
            found += [bench.measure(server, load, load * capacity) for server in servers]
    profile = load_profile(profile_path)
    command = shlex.join(["python", "-m", "bench.run.cache_forms", *sys.argv[1:]])
    command = command if earlier is None else f"{earlier.command}`, `{command}"
    document = Document(command, date, results.commit(), machine, folder.name, capacity, bench.targets, profile, found)
    num_decodes = max(1, int(max((m.use.num_running for m in found if m.setting == OFF), default=8.0)))
    return document, break_even(profile, num_decodes, sum(arguments.lengths))


def main() -> None:
    contestants.prepare_process()
    arguments = parse_arguments()
    contestants.RESULTS.mkdir(parents=True, exist_ok=True)
    document, even = run(contestants.model_folder(arguments.model), arguments)
    raw = contestants.RESULTS / f"cache-forms-{document.date.replace(':', '')}.json"
    raw.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    page = describe(document, arguments, even)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "cache_forms.md").write_text(wrapped(page))
    write_csv(arguments.output / "cache_forms.csv", HEADER, rows(document))
    plot(document, arguments.output / "cache_forms.png")
    print(f"\n{page}\nwritten to {os.path.relpath(arguments.output)} and {os.path.relpath(raw)}")


if __name__ == "__main__":
    main()
