"""Offered more than the machine can do: is everybody served or refused within a bound, and what is still in time?

    python -m bench.run.overload                                      # the 15m model, some 12 minutes for ours and fcfs
    python -m bench.run.overload --seconds 300 --peer vllm \\
        --peer-command "vllm serve {model} --port {port} --dtype bfloat16"

Capacity is what our server does in a closed loop, in requests per second. Then every server gets the same Poisson
arrivals, first at --at-capacity times that and then at --overload times it, for --seconds each (--capacity-seconds at
capacity), in turns; every request is waited for to its end, however long a queue has grown. Contestants are our server,
our server with the policy `fcfs`, and a peer.

Goodput is of requests that met both targets, per second of arrivals: what comes later, when nobody new asks any more,
counts as well and flatters who lets a queue grow. A refusal is an answer 429. The longest wait is for a first token or
between two tokens; --max-wait-s is the bound that our server states for it (docs/scheduling.md, "Overload").

Acceptance: in overload our server loses nobody, nobody waits longer than the bound, refusals come within a second, and
the goodput is at least 95 % of that at capacity. Exit status 1 if not.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from bench.lib import contestants, results
from bench.lib.load.live_load import Addressee, bodies, drive
from bench.lib.load.load_client import LoadClient, closed_loop
from bench.lib.load.load_report import distribution, ratio
from bench.lib.load.request_trace import RequestTrace
from bench.lib.load.slo import Targets, itl_attained, ttft_attained
from bench.lib.load.workload import fitted_workload
from bench.lib.server.server_process import ServerProcess
from bench.lib.table import render
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import Workload, make_workload

FCFS = "fcfs"
LOAD_NAMES = ("capacity", "overload")
PATIENCE_SECONDS = 1800.0  # of the client: who is served late is to be seen
MOST_REFUSAL_SECONDS = 1.0
LEAST_GOODPUT = 0.95
HEADER = (
    "server",
    "load",
    "req/s",
    "served",
    "refused",
    "failed",
    "goodput/s",
    "TTFT p50 (s)",
    "p99",
    "longest wait (s)",
    "slowest refusal (s)",
)


class Outcome(msgspec.Struct, frozen=True):
    """Of one server under one load."""

    server: str
    load: str
    rate: float  # offered, requests per second
    num_served: int
    num_refused: int
    failures: dict[str, int]  # message -> how many requests
    goodput: float  # requests per second
    ttft_p50: float  # seconds, of those served
    ttft_p99: float
    longest_wait: float  # seconds, for a token
    slowest_refusal: float  # seconds


class OverloadDocument(msgspec.Struct, frozen=True):
    date: str
    commit: str
    machine: results.Machine
    model: str
    seconds: float
    capacity: float  # requests per second
    servers: list[results.ServerFacts]
    outcomes: list[Outcome]


def is_refusal(trace: RequestTrace) -> bool:
    return trace.error.startswith("HTTP 429")


def outcome(
    server: str, load: str, rate: float, seconds: float, traces: Sequence[RequestTrace], targets: Targets
) -> Outcome:
    served = [trace for trace in traces if not trace.error]
    refused = [trace for trace in traces if is_refusal(trace)]
    failures: dict[str, int] = {}
    for trace in traces:
        if trace.error and not is_refusal(trace):
            failures[trace.error] = failures.get(trace.error, 0) + 1
    num_good = sum(ttft_attained(trace, targets) and itl_attained(trace, targets) for trace in served)
    ttft = distribution([trace.ttft for trace in served])
    return Outcome(
        server,
        load,
        rate,
        len(served),
        len(refused),
        failures,
        ratio(num_good, seconds),
        ttft.p50 / 1e3 if ttft else 0.0,
        ttft.p99 / 1e3 if ttft else 0.0,
        max((max(trace.ttft, *trace.itls, 0.0) for trace in served), default=0.0),
        max((trace.e2e for trace in refused), default=0.0),
    )


class Meter:
    """Measures one model's servers; equal rates see equal arrivals, and no prompt comes to a server twice."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self._lengths = fitted_workload(folder, arguments.input_len, arguments.output_len)
        self._arguments = arguments
        self._parts = itertools.count(1)
        self._targets = Targets(arguments.ttft_ms, arguments.itl_ms)
        at_capacity = arguments.seconds if arguments.capacity_seconds is None else arguments.capacity_seconds
        self._seconds = dict(zip(LOAD_NAMES, (at_capacity, arguments.seconds), strict=True))

    def capacity(self, server: ServerProcess) -> float:
        """Requests per second that it completes while --concurrency are under way."""
        concurrency = self._arguments.concurrency
        with server.turn():
            self._closed(server, 2 * concurrency)  # warm
            traces = self._closed(server, 8 * concurrency)
        if any(trace.error for trace in traces):
            sys.exit(f"{server.name} failed in a closed loop: {next(trace.error for trace in traces if trace.error)}")
        span = max(trace.completion for trace in traces) - min(trace.arrival for trace in traces)
        return ratio(len(traces), span)

    def measure(self, server: ServerProcess, load: str, rate: float) -> Outcome:
        seconds = self._seconds[load]
        process = ArrivalProcess(rate)
        num = process.num_in(seconds)
        with server.turn():
            traces = uvloop.run(self._drive(server, self._workload(process, num)))
        found = outcome(server.name, load, rate, seconds, traces, self._targets)
        print(
            f"{server.name}, {load}, {rate:.1f}/s: {found.num_served} served, {found.num_refused} refused, "
            f"{sum(found.failures.values())} failed, goodput {found.goodput:.2f}/s, "
            f"longest wait {found.longest_wait:.1f} s",
            file=sys.stderr,
        )
        return found

    def _workload(self, process: ArrivalProcess, num: int) -> Workload:
        prompts = Prompts.unrelated([self._lengths.prompt_len] * num)
        return make_workload(process.times(num, self._arguments.seed), prompts, [self._lengths.output_len] * num)

    def _closed(self, server: ServerProcess, num: int) -> list[RequestTrace]:
        workload = self._workload(ArrivalProcess(1.0), num)

        async def load() -> list[RequestTrace]:
            async with LoadClient(server.base_url, timeout_seconds=PATIENCE_SECONDS) as client:
                addressee = Addressee(await client.model_name(), self._lengths.vocab_size)
                asked = bodies(workload, addressee, next(self._parts))
                return await closed_loop(client, asked, self._arguments.concurrency)

        return uvloop.run(load())

    async def _drive(self, server: ServerProcess, workload: Workload) -> list[RequestTrace]:
        async with LoadClient(server.base_url, timeout_seconds=PATIENCE_SECONDS) as client:
            addressee = Addressee(await client.model_name(), self._lengths.vocab_size)
            return await drive(client, workload, bodies(workload, addressee, next(self._parts)))


def verdict(outcomes: Sequence[Outcome], max_wait_s: float) -> list[str]:
    """What of the acceptance our server fails; empty if nothing."""
    ours = {found.load: found for found in outcomes if found.server == contestants.OURS}
    calm, crowded = (ours[load] for load in LOAD_NAMES)
    wrong = []
    if crowded.failures:
        wrong.append(f"lost {sum(crowded.failures.values())} requests")
    if crowded.longest_wait > max_wait_s:
        wrong.append(f"somebody waited {crowded.longest_wait:.1f} s for a token")
    if crowded.slowest_refusal > MOST_REFUSAL_SECONDS:
        wrong.append(f"a refusal took {crowded.slowest_refusal:.1f} s")
    if crowded.goodput < LEAST_GOODPUT * calm.goodput:
        wrong.append(f"goodput fell to {ratio(crowded.goodput, calm.goodput):.0%}")
    return wrong


def describe(outcomes: Sequence[Outcome]) -> str:
    """Markdown."""
    return render(HEADER, [_row(found) for found in outcomes])


def _row(found: Outcome) -> list[str]:
    numbers = (found.num_served, found.num_refused, sum(found.failures.values()))
    seconds = (found.ttft_p50, found.ttft_p99, found.longest_wait, found.slowest_refusal)
    return [
        found.server,
        found.load,
        f"{found.rate:.1f}",
        *map(str, numbers),
        f"{found.goodput:.2f}",
        *(f"{value:.2f}" for value in seconds),
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="15m", help="demo, 15m, 100m, 0.5b or a checkpoint's folder")
    parser.add_argument("--ttft-ms", type=float, default=4000.0, help="target; told to our servers")
    parser.add_argument("--itl-ms", type=float, default=100.0, help="target, of the P99; told to our servers")
    parser.add_argument("--seconds", type=float, default=120.0, help="of arrivals per measurement")
    parser.add_argument("--capacity-seconds", type=float, help="the same at capacity (default: --seconds)")
    parser.add_argument("--at-capacity", type=float, default=0.9, help="of the closed loop's rate")
    parser.add_argument("--overload", type=float, default=1.5, help="of the closed loop's rate")
    parser.add_argument("--concurrency", type=int, default=64, help="of the closed loop")
    parser.add_argument("--max-wait-s", type=float, default=91.0, help="bound of any wait for a token")
    parser.add_argument("--input-len", type=int, default=128, help="prompt tokens")
    parser.add_argument("--output-len", type=int, default=128, help="output tokens")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals")
    contestants.add_server_options(parser)
    return parser.parse_args()


def commands(arguments: argparse.Namespace) -> dict[str, str]:
    given = contestants.commands(arguments)
    targets = f" --ttft-target-ms {arguments.ttft_ms:g} --itl-target-ms {arguments.itl_ms:g}"
    ours = given.pop(contestants.OURS, None)
    if ours is None:
        sys.exit("overload is measured against our own capacity: leave --peer-only away")
    return {contestants.OURS: ours + targets, FCFS: f"{ours}{targets} --scheduling-policy fcfs", **given}


def main() -> int:
    contestants.prepare_process()
    arguments = parse_arguments()
    date, machine = results.now(), results.this_machine()
    print(f"{machine.cpu}, {machine.num_cores} cores, load {machine.load_average:.2f}, commit {results.commit()}")
    folder = contestants.model_folder(arguments.model)
    meter = Meter(folder, arguments)
    with contestants.running(folder, commands(arguments)) as servers:
        idle_rss = [server.rss_bytes() for server in servers]
        capacity = meter.capacity(servers[0])
        print(f"capacity: {capacity:.2f} requests/s, {arguments.concurrency} at once", file=sys.stderr)
        factors = zip(LOAD_NAMES, (arguments.at_capacity, arguments.overload), strict=True)
        outcomes = [meter.measure(server, load, factor * capacity) for load, factor in factors for server in servers]
        facts = contestants.facts(servers, idle_rss)
    print(f"\n{describe(outcomes)}\n")
    document = OverloadDocument(
        date, results.commit(), machine, folder.name, arguments.seconds, capacity, facts, outcomes
    )
    output = contestants.RESULTS / f"overload-{date.replace(':', '')}.json"
    output.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    print(f"written to {os.path.relpath(output)}")
    wrong = verdict(outcomes, arguments.max_wait_s)
    for what in wrong:
        print(f"does not hold: {what}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
