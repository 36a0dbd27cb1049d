"""Online and offline work at once, ours and a peer's in turns: what people feel, and how many jobs get done meanwhile.

    python -m bench.run.online_offline --models 100m
    python -m bench.run.online_offline --models 100m --peer vllm --peer-offline-fields '{"priority": 1}' \\
      --peer-command "vllm serve {model} --port {port} --dtype bfloat16 --scheduling-policy priority"

Online: Poisson arrivals, --rate per second for --seconds, --online-len tokens in and out. Offline: --in-flight jobs
kept in flight, --offline-len tokens in and out, told apart by --offline-fields (ours: service_tier flex). Each server
first has the online load alone, then both; offline work begins --settle seconds before. Jobs and tokens count if they
are done within the online load's time. Prints a table per model, writes everything to bench/results/ as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from bench.lib import contestants, results
from bench.lib.load.live_load import Addressee, bodies, drive
from bench.lib.load.load_client import LoadClient, kept_in_flight
from bench.lib.load.load_report import LoadReport, ratio, summarize
from bench.lib.load.request_trace import RequestTrace
from bench.lib.load.slo import Attainment, Targets, attainment
from bench.lib.load.workload import fitted_workload
from bench.lib.server.cpu_use import CpuUse, read_cpu_use
from bench.lib.server.server_process import ServerProcess
from bench.lib.table import render
from schedcore.api.types import RequestClass
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import Workload, make_workload

HEADER = (
    "server", "load", "TTFT p50", "p99", "TPOT p50", "p99", "ITL p99", "attained %", "jobs done", "offline tokens/s",
    "noise %", "errors",
)  # fmt: skip
OFFLINE_PART = 1 << 13  # parts of prompts above are the offline jobs'


class MixedCell(msgspec.Struct, frozen=True):
    """One server under the online load, alone or with offline work beside it."""

    server: str
    has_offline: bool
    online: LoadReport
    attainment: Attainment
    num_jobs_done: int
    offline_tokens_per_second: float  # of jobs done
    num_offline_errors: int
    noise_ratio: float


class MixedResult(msgspec.Struct, frozen=True):
    model: str
    options: dict[str, Any]
    servers: list[results.ServerFacts]
    cells: list[MixedCell]


class MixedDocument(msgspec.Struct, frozen=True):
    date: str
    commit: str
    machine: results.Machine
    models: list[MixedResult]


class Mix:
    """The load of one model; no prompt comes to a server twice."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, offline_fields: Mapping[str, Any]) -> None:
        self._arguments = arguments
        self._offline_fields = offline_fields  # server name -> fields
        self._online = fitted_workload(folder, *arguments.online_len)
        self._offline = fitted_workload(folder, *arguments.offline_len)
        self._parts = itertools.count(1)

    def measure(self, server: ServerProcess, has_offline: bool) -> MixedCell:
        with server.turn():
            online, offline, start, cpu = uvloop.run(self._load(server, has_offline))
        end = start + self._arguments.seconds
        done = [trace for trace in offline if not trace.error and start <= trace.completion <= end]
        cell = MixedCell(
            server.name,
            has_offline,
            summarize(online, cpu.client),
            attainment(online, Targets(self._arguments.ttft_ms, self._arguments.itl_ms)),
            len(done),
            ratio(sum(trace.num_output_tokens for trace in done), self._arguments.seconds),
            sum(bool(trace.error) for trace in offline),
            cpu.noise_ratio,
        )
        print(f"{server.name}{' with offline' * has_offline}: {len(done)} jobs done", file=sys.stderr)
        return cell

    async def _load(
        self, server: ServerProcess, has_offline: bool
    ) -> tuple[list[RequestTrace], list[RequestTrace], float, CpuUse]:
        async with LoadClient(server.base_url) as client, LoadClient(server.base_url) as offline_client:
            fields = {RequestClass.OFFLINE: self._offline_fields[server.name]}
            addressee = Addressee(await client.model_name(), self._online.vocab_size, fields)
            workload = self._online_workload()
            asked = bodies(workload, addressee, next(self._parts))
            in_flight = self._arguments.in_flight if has_offline else 0
            async with kept_in_flight(offline_client, self._jobs(addressee), in_flight) as offline:
                await asyncio.sleep(self._arguments.settle * has_offline)
                before, start = read_cpu_use(server), time.perf_counter()
                online = await drive(client, workload, asked)
                await asyncio.sleep(start + self._arguments.seconds - time.perf_counter())
                cpu = read_cpu_use(server).since(before)
                offline_client.read_all()
            return online, offline, start, cpu

    def _online_workload(self) -> Workload:
        process = ArrivalProcess(self._arguments.rate, self._arguments.cv)
        times = process.times(4 * process.num_in(self._arguments.seconds), self._arguments.seed)
        times = times[times <= self._arguments.seconds]
        prompts = Prompts.unrelated(np.full(times.size, self._online.prompt_len))
        return make_workload(times, prompts, np.full(times.size, self._online.output_len))

    def _jobs(self, addressee: Addressee) -> Iterator[bytes]:
        prompts = Prompts.unrelated([self._offline.prompt_len]).in_part(OFFLINE_PART + next(self._parts))
        for number in itertools.count():
            job = Prompts(prompts.offsets, prompts.streams + np.uint64(number), prompts.ends, prompts.continuations)
            ids = job.prompt_token_ids(0).tolist()
            yield addressee.body(ids, self._offline.output_len, RequestClass.OFFLINE)


def measure_model(folder: Path, commands: dict[str, str], arguments: argparse.Namespace) -> MixedResult:
    fields = dict.fromkeys(commands, arguments.peer_offline_fields)
    fields[contestants.OURS] = arguments.offline_fields
    mix = Mix(folder, arguments, fields)
    with contestants.running(folder, commands) as servers:
        idle_rss = [server.rss_bytes() for server in servers]
        rounds = itertools.product(range(arguments.repeats), (False, True), servers)
        cells = [mix.measure(server, has_offline) for _, has_offline, server in rounds]
        facts = contestants.facts(servers, idle_rss)
    names = (
        "rate", "cv", "seconds", "online_len", "offline_len", "in_flight", "settle", "ttft_ms", "itl_ms",
        "offline_fields", "peer_offline_fields",
    )  # fmt: skip
    return MixedResult(folder.name, {name: getattr(arguments, name) for name in names}, facts, cells)


def describe(result: MixedResult) -> str:
    """Markdown. Latencies in milliseconds."""
    options = result.options
    title = (
        f"{result.model}: online {options['rate']:g}/s, {options['online_len']} tokens in and out; offline "
        f"{options['in_flight']} in flight, {options['offline_len']}; {options['seconds']:g} s; latencies in ms"
    )
    errors = {message for cell in result.cells for message in cell.online.errors}
    return "\n".join([title, "", render(HEADER, [_row(cell) for cell in result.cells]), *sorted(errors)])


def _row(cell: MixedCell) -> list[str]:
    report = cell.online
    latencies = [
        "-" if value is None else f"{getattr(value, field):.1f}"
        for value, field in (
            (report.ttft_ms, "p50"), (report.ttft_ms, "p99"), (report.tpot_ms, "p50"), (report.tpot_ms, "p99"),
            (report.itl_ms, "p99"),
        )
    ]  # fmt: skip
    load = "both" if cell.has_offline else "online"
    offline = [str(cell.num_jobs_done), f"{cell.offline_tokens_per_second:.0f}"] if cell.has_offline else ["-", "-"]
    num_errors = report.num_errors + cell.num_offline_errors
    attained = f"{cell.attainment.both * 100:.0f}"
    return [cell.server, load, *latencies, attained, *offline, f"{cell.noise_ratio:.0%}", str(num_errors)]


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["100m"], help="demo, 15m, 100m, 0.5b or checkpoint folders")
    parser.add_argument("--rate", type=float, default=1.5, help="online requests per second")
    parser.add_argument("--cv", type=float, default=1.0, help="burstiness of arrivals (default: 1, Poisson)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of online arrivals")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds that offline work has before")
    parser.add_argument("--online-len", type=int, nargs=2, default=[128, 32], metavar=("IN", "OUT"), help="tokens")
    parser.add_argument("--offline-len", type=int, nargs=2, default=[128, 256], metavar=("IN", "OUT"), help="tokens")
    parser.add_argument("--in-flight", type=int, default=64, help="offline jobs (default: 64)")
    parser.add_argument("--ttft-ms", type=float, default=1000.0, help="target of online requests, for attainment")
    parser.add_argument("--itl-ms", type=float, default=150.0, help="target of online requests, for attainment")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of arrivals")
    flex = {"service_tier": "flex"}
    parser.add_argument("--offline-fields", type=json.loads, default=flex, help="JSON, added to our offline requests")
    parser.add_argument("--peer-offline-fields", type=json.loads, default={}, help="JSON, added to the peer's")
    contestants.add_server_options(parser)
    return parser.parse_args(arguments)


def main() -> None:
    contestants.prepare_process()
    arguments = parse_arguments()
    date, machine, models = results.now(), results.this_machine(), []
    print(f"{machine.cpu}, {machine.num_cores} cores, load {machine.load_average:.2f}, commit {results.commit()}")
    output = contestants.RESULTS / f"online-offline-{date.replace(':', '')}.json"
    for name in arguments.models:
        folder = contestants.model_folder(name)
        models.append(measure_model(folder, contestants.commands(arguments), arguments))
        print(f"\n{describe(models[-1])}\n")
        document = MixedDocument(date, results.commit(), machine, models)
        output.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    print(f"written to {os.path.relpath(output)}")


if __name__ == "__main__":
    main()
