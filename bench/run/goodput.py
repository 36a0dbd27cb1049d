"""The highest request rate at which a share of the requests meets its targets, ours and a peer's in turns.

    python -m bench.run.goodput --models 100m --ttft-ms 1000 --itl-ms 150
    python -m bench.run.goodput --models 100m --peer vllm \\
        --peer-command "vllm serve {model} --port {port} --dtype bfloat16"
    python -m bench.run.goodput --models 100m --rates 1 2 4 8           # no search: attainment at these rates

Open loop: Poisson arrivals, or gamma with --cv, for --seconds each; requests of --input-len and --output-len tokens.
Each server's own rate is searched for, one measurement at a time and by turns. Targets and attainment are defined in
docs/metrics.md; ours is told its targets by its command (--ttft-target-ms, --itl-target-ms in --server-command). Prints
a table per model and the ratio, writes everything to bench/results/ as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import uvloop

from bench.lib import contestants, results
from bench.lib.load.live_load import Addressee, bodies, drive
from bench.lib.load.load_client import LoadClient
from bench.lib.load.load_report import LoadReport, ratio, summarize
from bench.lib.load.rate_search import RateSearch
from bench.lib.load.request_trace import RequestTrace
from bench.lib.load.slo import Attainment, Targets, attainment
from bench.lib.load.workload import fitted_workload
from bench.lib.server.cpu_use import CpuUse, read_cpu_use
from bench.lib.server.server_process import ServerProcess
from bench.lib.table import render
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import Workload, make_workload

GRACE_SECONDS = 30.0  # beyond the TTFT target, for one request; later it has failed whatever it does
WARM_UP_SECONDS = 3.0
HEADER = ("server", "req/s", "both %", "TTFT %", "ITL %", "goodput/s", "TTFT p50", "p99", "ITL p50", "p99", "noise %")


class Measurement(msgspec.Struct, frozen=True):
    server: str
    rate: float  # offered, requests per second
    attainment: Attainment
    report: LoadReport
    noise_ratio: float


class GoodputResult(msgspec.Struct, frozen=True):
    model: str
    targets: Targets
    level: float
    cv: float
    seconds: float
    prompt_len: int
    output_len: int
    servers: list[results.ServerFacts]
    measurements: list[Measurement]
    best_rates: dict[str, float]  # the highest measured rate that held the level; 0: none did


class GoodputDocument(msgspec.Struct, frozen=True):
    date: str
    commit: str
    machine: results.Machine
    models: list[GoodputResult]


class Meter:
    """Measures one model's servers; equal rates see equal arrivals, and no prompt comes to a server twice."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self._lengths = fitted_workload(folder, arguments.input_len, arguments.output_len)
        self._arguments = arguments
        self._parts = itertools.count(1)
        self.targets = Targets(arguments.ttft_ms, arguments.itl_ms)

    @property
    def lengths(self) -> tuple[int, int]:
        return self._lengths.prompt_len, self._lengths.output_len

    def workload(self, rate: float, seconds: float) -> Workload:
        process = ArrivalProcess(rate, self._arguments.cv)
        num = process.num_in(seconds)
        prompts = Prompts.unrelated([self._lengths.prompt_len] * num)
        return make_workload(process.times(num, self._arguments.seed), prompts, [self._lengths.output_len] * num)

    def measure(self, server: ServerProcess, rate: float, seconds: float) -> Measurement:
        with server.turn():
            traces, cpu = uvloop.run(self._load(server, self.workload(rate, seconds)))
        report = summarize(traces, cpu.client)
        found = Measurement(server.name, rate, attainment(traces, self.targets), report, cpu.noise_ratio)
        print(
            f"{server.name} {rate:.2f}/s: {found.attainment.both:.0%} attained, {report.num_errors} errors, "
            f"noise {cpu.noise_ratio:.0%}",
            file=sys.stderr,
        )
        return found

    async def _load(self, server: ServerProcess, workload: Workload) -> tuple[list[RequestTrace], CpuUse]:
        timeout = GRACE_SECONDS + (self.targets.ttft_ms or 0.0) / 1e3
        async with LoadClient(server.base_url, timeout_seconds=timeout) as client:
            addressee = Addressee(await client.model_name(), self._lengths.vocab_size)
            asked = bodies(workload, addressee, next(self._parts))
            before = read_cpu_use(server)
            traces = await drive(client, workload, asked)
            return traces, read_cpu_use(server).since(before)


def search(meter: Meter, servers: Sequence[ServerProcess], arguments: argparse.Namespace) -> Iterator[Measurement]:
    """In turns, until every server's rate is found."""
    searches = {
        server.name: RateSearch(arguments.level, arguments.start_rate, arguments.precision) for server in servers
    }
    while not all(search.is_done for search in searches.values()):
        for server in servers:
            state = searches[server.name]
            if not state.is_done:
                found = meter.measure(server, state.rate, arguments.seconds)
                state.record(found.rate, found.attainment.both)
                yield found


def best_rate(measurements: Sequence[Measurement], server: str, level: float) -> float:
    """The highest rate that held the level, below the lowest that did not."""
    own = [m for m in measurements if m.server == server]
    worst = min((m.rate for m in own if m.attainment.both < level), default=float("inf"))
    return max((m.rate for m in own if m.attainment.both >= level and m.rate < worst), default=0.0)


def measure_model(folder: Path, commands: dict[str, str], arguments: argparse.Namespace) -> GoodputResult:
    meter = Meter(folder, arguments)
    with contestants.running(folder, commands) as servers:
        idle_rss = [server.rss_bytes() for server in servers]
        for server in servers:
            meter.measure(server, arguments.start_rate, WARM_UP_SECONDS)
        if arguments.rates:
            pairs = itertools.product(arguments.rates, servers)
            found = [meter.measure(server, rate, arguments.seconds) for rate, server in pairs]
        else:
            found = list(search(meter, servers, arguments))
        facts = contestants.facts(servers, idle_rss)
    best = {name: best_rate(found, name, arguments.level) for name in commands}
    lengths = meter.lengths
    return GoodputResult(
        folder.name, meter.targets, arguments.level, arguments.cv, arguments.seconds, *lengths, facts, found, best
    )


def describe(result: GoodputResult) -> str:
    """Markdown. Latencies in milliseconds."""
    ttft, itl = result.targets.ttft_ms, result.targets.itl_ms
    title = (
        f"{result.model}: {result.prompt_len} tokens in, {result.output_len} out, CV {result.cv:g}, "
        f"{result.seconds:g} s each; TTFT <= {ttft} ms, P99 ITL <= {itl} ms; latencies in ms"
    )
    lines = [title, "", render(HEADER, [_row(m) for m in sorted(result.measurements, key=_by_server)]), ""]
    for name, rate in result.best_rates.items():
        lines.append(f"{name}: {rate:.2f} requests/s at {result.level:.0%}")
    if len(result.best_rates) == 2:
        (ours, our_rate), (peer, peer_rate) = result.best_rates.items()
        lines.append(f"{ours} over {peer}: {ratio(our_rate, peer_rate):.2f}x")
    return "\n".join(lines)


def _by_server(measurement: Measurement) -> tuple[str, float]:
    return measurement.server, measurement.rate


def _row(m: Measurement) -> list[str]:
    shares = [f"{share * 100:.0f}" for share in (m.attainment.both, m.attainment.ttft, m.attainment.itl)]
    latencies = [
        "-" if value is None else f"{getattr(value, field):.1f}"
        for value in (m.report.ttft_ms, m.report.itl_ms)
        for field in ("p50", "p99")
    ]
    return [m.server, f"{m.rate:.2f}", *shares, f"{m.attainment.goodput:.2f}", *latencies, f"{m.noise_ratio:.0%}"]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["100m"], help="demo, 15m, 100m, 0.5b or checkpoint folders")
    parser.add_argument("--ttft-ms", type=float, default=1000.0)
    parser.add_argument("--itl-ms", type=float, default=150.0)
    parser.add_argument("--level", type=float, default=0.9, help="share of requests that must meet both (default: 0.9)")
    parser.add_argument("--cv", type=float, default=1.0, help="burstiness of arrivals (default: 1, Poisson)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals per measurement")
    parser.add_argument("--start-rate", type=float, default=1.0, help="requests/s at which the search starts")
    parser.add_argument("--precision", type=float, default=1.1, help="factor between the last two rates of the search")
    parser.add_argument("--rates", type=float, nargs="+", help="measure these instead of searching")
    parser.add_argument("--input-len", type=int, default=128, help="prompt tokens")
    parser.add_argument("--output-len", type=int, default=128, help="output tokens")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals")
    contestants.add_server_options(parser)
    return parser.parse_args()


def main() -> None:
    contestants.prepare_process()
    arguments = parse_arguments()
    date, machine, models = results.now(), results.this_machine(), []
    print(f"{machine.cpu}, {machine.num_cores} cores, load {machine.load_average:.2f}, commit {results.commit()}")
    output = contestants.RESULTS / f"goodput-{date.replace(':', '')}.json"
    for name in arguments.models:
        folder = contestants.model_folder(name)
        models.append(measure_model(folder, contestants.commands(arguments), arguments))
        print(f"\n{describe(models[-1])}\n")
        document = GoodputDocument(date, results.commit(), machine, models)
        output.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    print(f"written to {os.path.relpath(output)}")


if __name__ == "__main__":
    main()
