"""Online requests beside a batch whose rows share prefixes: what people feel, and how much of the batch gets done.

    python -m bench.run.coserving                        # the 15m model, 8 minutes; docs/results/coserving.md and .png
    python -m bench.run.coserving --model 100m --seconds 120 --ttft-ms 1000 --itl-ms 150
    python -m bench.run.coserving --quick --output /tmp  # a minute, to see whether everything works

Capacity is what a closed loop of --capacity-concurrency online requests gets through; online load is a Poisson process
at --load of it. First online alone, then with --rows offline rows, uploaded as a batch, under policy hocket. Then under
policy bs (online first, offline rows in order, nothing else) with the batch's look-ahead limited to each of --bs-rows
rows: the fewer, the less it hurts. So bs can be compared at equal attainment: with the setting that gets most done
among those that attain what hocket does, less a point. Every setting has a server and a data directory of
its own.

Offline throughput counts rows that ended between first arrival and last completion online, and stops when the batch is
done.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import uvloop

from bench.lib import contestants, results
from bench.lib.load.live_load import Addressee, bodies, drive
from bench.lib.load.load_client import LoadClient, closed_loop
from bench.lib.load.load_report import LoadReport, ratio, summarize
from bench.lib.load.slo import Attainment, Targets, attainment
from bench.lib.load.workload import Workload, fitted_workload
from bench.lib.server.cpu_use import read_cpu_use
from bench.lib.server.data_server import DataServer
from bench.lib.server.offline_batch import OfflineProgress, SharedDocuments, cancel, read_progress, submit
from bench.lib.server.server_process import ServerProcess
from bench.lib.table import render_part, wrapped, write_csv
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import make_workload

SETTLE_SECONDS = 3.0  # that offline work has before the first arrival
SAMPLE_SECONDS = 0.5
EQUAL_ATTAINMENT = 0.01
HEADER = (
    "setting", "TTFT p50", "p99", "ITL p50", "p99", "attained %", "offline rows/s", "prompt tokens/s",
    "output tokens/s", "from cache %", "noise %", "errors",
)  # fmt: skip
SHOWN = (0, 1, 2, 3, 4, 5, 6, 9)  # on the page


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    options: str  # of hocket serve
    has_offline: bool


class Measurement(msgspec.Struct, frozen=True):
    setting: str
    has_offline: bool
    command: str
    online: LoadReport
    attainment: Attainment
    rows_per_second: float
    prompt_tokens_per_second: float
    output_tokens_per_second: float
    cached_ratio: float  # of the batch's prompt tokens
    noise_ratio: float


class Document(msgspec.Struct, frozen=True):
    command: str
    date: str
    commit: str
    machine: results.Machine
    model: str
    capacity: float  # online requests per second
    rate: float
    targets: Targets
    measurements: list[Measurement]


class Coserving:
    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self._folder = folder
        self._arguments = arguments
        self._online = fitted_workload(folder, *arguments.online_len)
        self._targets = Targets(arguments.ttft_ms, arguments.itl_ms)
        self._num_runs = 0

    def capacity(self) -> float:
        """Online requests per second of a closed loop, alone."""
        with self._server(Setting("capacity", "--scheduling-policy hocket", False)) as server:
            concurrency = self._arguments.capacity_concurrency
            warm = Workload(self._online.prompt_len, self._online.output_len, self._online.vocab_size, 99)
            uvloop.run(self._closed(server, warm, concurrency, concurrency))
            num = concurrency * self._arguments.capacity_rounds
            return uvloop.run(self._closed(server, self._online, num, concurrency)).requests_per_second

    async def _closed(self, server: ServerProcess, workload: Workload, num: int, concurrency: int) -> LoadReport:
        async with LoadClient(server.base_url) as client:
            model = await client.model_name()
            asked = [workload.body(i, model) for i in range(num)]
            return summarize(await closed_loop(client, asked, concurrency))

    def measure(self, setting: Setting, rate: float) -> Measurement:
        self._num_runs += 1
        with self._server(setting) as server:
            rows = self._rows() if setting.has_offline else None
            batch_id = submit(server, rows) if rows else None
            measurement = uvloop.run(self._run(server, setting, rate))
            if batch_id is not None:
                cancel_quietly(server, batch_id)
        print(
            f"{setting.name}: attained {measurement.attainment.both:.1%}, {measurement.rows_per_second:.1f} rows/s",
            file=sys.stderr,
        )
        return measurement

    def _rows(self) -> SharedDocuments:
        args = self._arguments
        return SharedDocuments(args.rows, args.documents, *args.offline_len, self._online.vocab_size, seed=args.seed)

    async def _run(self, server: ServerProcess, setting: Setting, rate: float) -> Measurement:
        args = self._arguments
        process = ArrivalProcess(rate)
        times = process.times(4 * process.num_in(args.seconds), args.seed)
        times = times[times <= args.seconds]
        prompts = Prompts.unrelated(np.full(times.size, self._online.prompt_len))
        workload = make_workload(times, prompts, np.full(times.size, self._online.output_len))
        async with LoadClient(server.base_url) as client:
            addressee = Addressee(await client.model_name(), self._online.vocab_size)
            asked = bodies(workload, addressee, self._num_runs)
            await asyncio.sleep(SETTLE_SECONDS * setting.has_offline)
            before = read_cpu_use(server)
            samples: list[OfflineProgress] = []
            sampling = asyncio.create_task(sample(server, samples))
            traces = await drive(client, workload, asked)
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
            cpu = read_cpu_use(server).since(before)
        first, last = samples[0], while_at_work(samples)
        seconds = last.at - first.at
        num_prompt = last.num_prompt_tokens - first.num_prompt_tokens
        return Measurement(
            setting.name,
            setting.has_offline,
            server.command,
            summarize(traces, cpu.client),
            attainment(traces, self._targets),
            ratio(last.num_rows - first.num_rows, seconds),
            ratio(num_prompt, seconds),
            ratio(last.num_output_tokens - first.num_output_tokens, seconds),
            ratio(last.num_cached_tokens - first.num_cached_tokens, num_prompt),
            cpu.noise_ratio,
        )

    def _server(self, setting: Setting) -> DataServer:
        args = self._arguments
        told = args.told
        targets = f"--ttft-target-ms {told * args.ttft_ms:g} --itl-target-ms {told * args.itl_ms:g}"
        cache = f" --kv-cache-memory-bytes {args.cache}" if args.cache else ""
        options = f"{setting.options} {targets}{cache} {args.server_options}".strip()
        log = contestants.RESULTS / f"coserving-{setting.name.replace(' ', '-')}.log"
        return DataServer(setting.name, f"{args.server_command} {options}", shlex.quote(str(self._folder)), log)


async def sample(server: ServerProcess, samples: list[OfflineProgress]) -> None:
    while True:
        samples.append(await asyncio.to_thread(read_progress, server))
        await asyncio.sleep(SAMPLE_SECONDS)


def while_at_work(samples: Sequence[OfflineProgress]) -> OfflineProgress:
    """The first sample that has all that the last one has."""
    return next(progress for progress in samples if progress.num_rows == samples[-1].num_rows)


def cancel_quietly(server: ServerProcess, batch_id: str) -> None:
    """It may have ended."""
    import openai

    try:
        cancel(server, batch_id)
    except openai.APIStatusError:
        return


def settings(bs_rows: Sequence[int]) -> list[Setting]:
    bs = "--scheduling-policy bs --no-prefix-order"
    return [
        Setting("online alone", "--scheduling-policy hocket", False),
        Setting("hocket", "--scheduling-policy hocket", True),
        *(Setting(f"bs, {num} rows", f"{bs} --look-ahead-rows {num}", True) for num in bs_rows),
    ]


def verdict(measurements: Sequence[Measurement]) -> list[str]:
    alone, ours, *others = measurements
    points = 100 * (alone.attainment.both - ours.attainment.both)
    lines = [
        f"Online alone attains {alone.attainment.both:.1%}. With the batch beside it {ours.attainment.both:.1%}: "
        f"{points:.1f} points less."
    ]
    level = ours.attainment.both - EQUAL_ATTAINMENT
    equal = [m for m in others if m.attainment.both >= level]
    if equal:
        best = max(equal, key=lambda m: m.rows_per_second)
        gain = ratio(ours.rows_per_second, best.rows_per_second)
        lines.append(
            f"Offline throughput: {ours.rows_per_second:.1f} rows/s, {gain:.2f} x that of the best bs at equal "
            f"attainment ({best.setting}: {best.rows_per_second:.1f} rows/s at {best.attainment.both:.1%})."
        )
    elif others:
        nearest = max(others, key=lambda m: m.attainment.both)
        lines.append(
            f"No setting of bs attains as much: the best is {nearest.setting} with {nearest.attainment.both:.1%} at "
            f"{nearest.rows_per_second:.1f} rows/s; hocket has {ours.rows_per_second:.1f} rows/s."
        )
    return lines


def describe(document: Document, arguments: argparse.Namespace) -> str:
    """Markdown. Latencies in milliseconds."""
    document_len, question_len, output_len = arguments.offline_len
    machine, targets = document.machine, document.targets
    lines = [
        "# Live: online requests beside a batch",
        "",
        f"**Measured.** `{document.command}`, {document.date[:10]}, commit {document.commit}; {machine.cpu}, "
        f"{machine.num_cores} cores, load average before {machine.load_average:.2f}. Model {document.model}.",
        "",
        f"Online: Poisson, {document.rate:.2f} requests/s, {arguments.load:.0%} of the {document.capacity:.2f} that a "
        f"closed loop of {arguments.capacity_concurrency} gets through; {arguments.online_len[0]} tokens in, "
        f"{arguments.online_len[1]} out, for {arguments.seconds:g} s; targets TTFT {targets.ttft_ms:g} ms, ITL "
        f"{targets.itl_ms:g} ms (docs/metrics.md), of which the server is told {arguments.told:.0%}. Offline: "
        f"{arguments.rows} rows in random order over {arguments.documents} documents of {document_len} tokens, "
        f"questions of {question_len}, {output_len} out. bs: online first, offline rows in the file's order, its "
        "look-ahead limited to so many rows.",
        "",
        "![Online attainment and offline throughput](coserving.png)",
        "",
        render_part(HEADER, rows(document), SHOWN),
        "",
        f"All {len(HEADER)} columns: [coserving.csv](coserving.csv).",
        "",
        *verdict(document.measurements),
        "",
        "Noise: cores that others used meanwhile. Latencies in ms.",
    ]
    return "\n".join(lines) + "\n"


def rows(document: Document) -> list[list[str]]:
    """As HEADER says."""
    return [_row(m) for m in document.measurements]


def _row(m: Measurement) -> list[str]:
    report = m.online
    latencies = [
        "-" if value is None else f"{getattr(value, field):.1f}"
        for value in (report.ttft_ms, report.itl_ms)
        for field in ("p50", "p99")
    ]
    rates = (m.rows_per_second, m.prompt_tokens_per_second, m.output_tokens_per_second, 100 * m.cached_ratio)
    offline = [f"{rate:.1f}" for rate in rates] if m.has_offline else ["-"] * len(rates)
    attained = f"{m.attainment.both * 100:.1f}"
    return [m.setting, *latencies, attained, *offline, f"{m.noise_ratio:.0%}", str(report.num_errors)]


def plot(document: Document, target: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    alone, ours, *others = document.measurements
    with matplotlib.rc_context({"font.size": 9}):
        figure, axis = plt.subplots(figsize=(5.2, 3.4))
        axis.axhline(100 * alone.attainment.both, color="gray", linewidth=0.8, linestyle=":", label="online alone")
        points = sorted((m.rows_per_second, 100 * m.attainment.both) for m in others)
        if points:
            axis.plot(*zip(*points, strict=True), marker="o", label="bs, more and more rows at a time")
        axis.scatter([ours.rows_per_second], [100 * ours.attainment.both], marker="*", s=120, label="hocket", zorder=3)
        axis.set_xlim(left=0)
        axis.set_ylim(0, 103)
        axis.set_xlabel("offline rows/s")
        axis.set_ylabel("online requests that met their targets (%)")
        axis.set_title(f"{document.model}, {document.date[:10]}, {document.commit}")
        axis.legend()
        figure.tight_layout()
        figure.savefig(target, dpi=120)
        plt.close(figure)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="15m", help="demo, 15m, 100m, 0.5b or a checkpoint's folder")
    parser.add_argument("--seconds", type=float, default=60.0, help="of online arrivals, per setting")
    parser.add_argument("--load", type=float, default=0.5, help="online rate as a share of capacity")
    parser.add_argument("--rate", type=float, help="online requests per second, instead of measuring the capacity")
    parser.add_argument("--capacity-concurrency", type=int, default=32)
    parser.add_argument("--capacity-rounds", type=int, default=8)
    parser.add_argument("--online-len", type=int, nargs=2, default=[128, 64], metavar=("IN", "OUT"))
    parser.add_argument("--ttft-ms", type=float, default=500.0)
    parser.add_argument("--itl-ms", type=float, default=50.0)
    parser.add_argument("--told", type=float, default=0.8, help="share of the targets that the server is told to hold")
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--documents", type=int, default=50)
    parser.add_argument(
        "--offline-len", type=int, nargs=3, default=[768, 32, 16], metavar=("DOCUMENT", "QUESTION", "OUT")
    )
    parser.add_argument("--bs-rows", type=int, nargs="*", default=[1, 2, 4, 16])
    parser.add_argument(
        "--cache", default="96M", help="default: 96M, four fifths of the documents; '' for the server's own size"
    )
    parser.add_argument("--server-command", default=contestants.OUR_COMMAND)
    parser.add_argument("--server-options", default="", help="for every setting")
    parser.add_argument("--output", type=Path, default=contestants.ROOT / "docs" / "results")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="short runs, to see whether everything works")
    args = parser.parse_args(arguments)
    if args.quick:
        args.seconds, args.rows, args.bs_rows, args.capacity_rounds = 6.0, 1000, [4, 1024], 2
    return args


def main() -> None:
    contestants.prepare_process()
    arguments = parse_arguments()
    contestants.RESULTS.mkdir(parents=True, exist_ok=True)
    date, machine, folder = results.now(), results.this_machine(), contestants.model_folder(arguments.model)
    bench = Coserving(folder, arguments)
    capacity = bench.capacity() if arguments.rate is None else arguments.rate / arguments.load
    rate = arguments.load * capacity
    print(f"capacity {capacity:.2f} requests/s, online rate {rate:.2f}", file=sys.stderr)
    measurements = [bench.measure(setting, rate) for setting in settings(arguments.bs_rows)]
    command = shlex.join(["python", "-m", "bench.run.coserving", *sys.argv[1:]])
    targets = Targets(arguments.ttft_ms, arguments.itl_ms)
    document = Document(command, date, results.commit(), machine, folder.name, capacity, rate, targets, measurements)
    raw = contestants.RESULTS / f"coserving-{date.replace(':', '')}.json"
    raw.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    page = describe(document, arguments)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "coserving.md").write_text(wrapped(page))
    write_csv(arguments.output / "coserving.csv", HEADER, rows(document))
    plot(document, arguments.output / "coserving.png")
    print(f"\n{page}\nwritten to {os.path.relpath(arguments.output)} and {os.path.relpath(raw)}")


if __name__ == "__main__":
    main()
