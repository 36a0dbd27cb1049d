"""Every recorded trace, live: what `hocket`, `fcfs` and `priority` attain of the targets that are derived by default.

    python -m bench.run.recorded.traces --data FOLDER                    # the 15m model; docs/results/traces_live.md
    python -m bench.run.recorded.traces --data FOLDER --quick --output /tmp --traces humaneval

FOLDER holds the traces of bench/lib/recorded_traces.py, NAME.csv.gz each; those that it lacks are left out. Prompts and
answers are cut to a part of their lengths (--divisor), blocks that have ids with them, and pauses are shortened
(--pauses), so that a small model on a small machine serves in a minute what a large one served in an hour. Of each
trace as many consecutive requests are taken as have --tokens tokens.

Load is relative to the rate at which `fcfs` is done with the same requests when all are there at once. The targets are
those that `hocket` derives by default. For ITL it is what it says that it promises (hocket_promised_itl_seconds), the
mean of before and after its turn with the same arrivals, since it goes on learning; for TTFT the same rule, eight times
what a prompt of 1,024 tokens takes alone and a second at least, as measured on `fcfs`. Every server has its turn with
the same arrivals; equal requests are those of one priority, length of prompt and of answer.
bench/studies/recorded/traces.py is the same on simulated hardware.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from bench.lib import contestants, results
from bench.lib.load.live_load import Addressee, bodies, drive
from bench.lib.load.load_client import LoadClient, closed_loop
from bench.lib.load.load_report import LoadReport, ratio, summarize
from bench.lib.load.request_trace import RequestTrace
from bench.lib.load.slo import Attainment, Targets, attainment
from bench.lib.load.workload import Workload as FixedWorkload
from bench.lib.load.workload import fitted_workload
from bench.lib.recorded_traces import PRIORITY_SHARE, SOURCES, Source, at_rate, scaled, window, with_priorities
from bench.lib.server.cpu_use import CpuUse, read_cpu_use
from bench.lib.server.server_process import ServerProcess
from bench.lib.table import render, wrapped
from schedcore.api.types import RequestClass
from schedcore.simulation.workloads.traces import Trace, read_trace
from schedcore.simulation.workloads.workload import NO_REQUEST, Workload

OURS = "hocket"
POLICIES = (OURS, "fcfs", "priority")
TARGET_PROMPT, TARGET_DECODES = 1024, 32  # tokens; at once
TARGET_ANSWER = 256  # tokens
LEAST_TTFT_MS = 1000  # of a server's promise, as cpp/core/estimates/estimates.h says
PROMISED_ITL = "hocket_promised_itl_seconds"
SAME_STEP_SECONDS = 0.005  # first tokens that are no further apart may be of one step
SAME_TIME_SECONDS = 0.001  # arrivals that are no further apart may reach the server in any order
HEADER = ("trace", "load", "policy", "attained", "TTFT / ITL attained", "TTFT p50 / p99", "ITL p99", "overtaken")
GAINS = ("trace", "load", *(f"less {policy}" for policy in POLICIES[1:]))


@dataclass(frozen=True, slots=True)
class Cell:
    """Requests of one seed."""

    source: Source
    load: float
    seed: int


class Measurement(msgspec.Struct, frozen=True):
    trace: str
    load: float
    seed: int
    policy: str
    rate: float  # offered, requests per second
    targets: Targets
    attainment: Attainment
    report: LoadReport
    num_refused: int
    num_overtaken: int | None  # unknown where prompts share something
    noise_ratio: float


class Document(msgspec.Struct, frozen=True):
    command: str
    date: str
    commit: str
    machine: results.Machine
    model: str
    divisor: int
    num_requests: dict[str, int]  # of a trace's run
    measurements: list[Measurement]


class Meter:
    """Measures the servers of one model; no prompt comes to a server twice."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        longest = fitted_workload(folder, 1 << 30, 1)
        self._vocab_size = longest.vocab_size
        self._max_tokens = longest.prompt_len + longest.output_len
        self._arguments = arguments
        self._parts = itertools.count(1)
        self._traces: dict[str, Trace] = {}
        self._capacities: dict[tuple[str, int], float] = {}

    def warm_up(self, servers: Sequence[ServerProcess]) -> float:
        """Every server learns its step times from the same requests. Returns the target for first tokens, ms."""
        first_token_ms = {}
        for server in servers:
            with server.turn():
                for seed in (1, 2):
                    alone = self._closed(server, FixedWorkload(TARGET_PROMPT, 1, self._vocab_size, seed), 8, 1)
                    crowd = FixedWorkload(TARGET_PROMPT, TARGET_ANSWER, self._vocab_size, 8 + seed)
                    self._closed(server, crowd, 2 * TARGET_DECODES, TARGET_DECODES)
            if alone.ttft_ms is None:
                sys.exit(f"{server.name} answered nothing: its log is in {os.path.relpath(contestants.RESULTS)}")
            first_token_ms[server.name] = alone.ttft_ms.p50
        return max(round(8 * first_token_ms["fcfs"]), LEAST_TTFT_MS)

    def _closed(self, server: ServerProcess, workload: FixedWorkload, num: int, concurrency: int) -> LoadReport:
        async def load() -> LoadReport:
            async with LoadClient(server.base_url) as client:
                model = await client.model_name()
                return summarize(await closed_loop(client, [workload.body(i, model) for i in range(num)], concurrency))

        return uvloop.run(load())

    def rows(self, source: Source, seed: int) -> Trace:
        trace = self._traces.get(source.name)
        if trace is None:
            divisor = self._arguments.divisor
            trace = read_trace(self._arguments.data / f"{source.name}.csv.gz").fitting(divisor * self._max_tokens)
            trace = self._traces[source.name] = scaled(trace, divisor)
        mean = float(np.mean(trace.input_tokens) + np.mean(trace.output_tokens))
        num = int(min(max(self._arguments.tokens / mean, self._arguments.least), self._arguments.most, len(trace)))
        return window(trace, source, num, seed)

    def capacity(self, server: ServerProcess, source: Source, seed: int) -> float:
        """Requests per second when all of them are there at once."""
        key = source.name, seed
        if key not in self._capacities:
            traces, _ = self._drive(server, at_rate(source, self.rows(source, seed), float("inf"), seed))
            wrong = [trace.error for trace in traces if trace.error]
            if wrong:
                sys.exit(f"{source.name}: {len(wrong)} requests failed when all were there at once: {wrong[0]}")
            span = max(trace.completion for trace in traces) - min(trace.arrival for trace in traces)
            self._capacities[key] = len(traces) / span
        return self._capacities[key]

    def measure(
        self, servers: Sequence[ServerProcess], cell: Cell, capacity: float, ttft_ms: float
    ) -> list[Measurement]:
        """Each server in its turn, judged by what ours promises."""
        rate = cell.load * capacity
        arrivals = at_rate(cell.source, self.rows(cell.source, cell.seed), rate, cell.seed)
        workload = with_priorities(arrivals, cell.seed)
        runs, promises_ms = [], []
        for server in servers:
            before = promised_itl_ms(server)
            runs.append((server.name, *self._drive(server, workload)))
            if server.name == OURS:
                promises_ms = [before, promised_itl_ms(server)]
        if not all(promises_ms):
            sys.exit(f"{OURS} does not say what it promises between two tokens ({PROMISED_ITL} in its /metrics)")
        targets = Targets(ttft_ms, round(float(np.mean(promises_ms)), 2))
        found = []
        for name, traces, cpu in runs:
            attained = attainment(traces, targets)
            refused = sum(trace.error.startswith("HTTP 429") for trace in traces)
            overtaken = num_overtaken(workload, traces) if cell.source.hash_block_size is None else None
            report = summarize(traces, cpu.client)
            key = cell.source.name, cell.load, cell.seed
            found.append(Measurement(*key, name, rate, targets, attained, report, refused, overtaken, cpu.noise_ratio))
            print(
                f"{cell.source.name} at {cell.load:g} ({rate:.2f}/s, {len(workload)} requests), {name}: "
                f"{attained.both:.1%} attained of {targets.itl_ms:g} ms, {report.num_errors} errors, "
                f"noise {cpu.noise_ratio:.0%}",
                file=sys.stderr,
            )
        return found

    def _drive(self, server: ServerProcess, workload: Workload) -> tuple[list[RequestTrace], CpuUse]:
        async def load() -> tuple[list[RequestTrace], CpuUse]:
            async with LoadClient(server.base_url) as client:
                asked = self._bodies(workload, await client.model_name())
                before = read_cpu_use(server)
                traces = await drive(client, workload, asked)
                return traces, read_cpu_use(server).since(before)

        with server.turn():
            return uvloop.run(load())

    def _bodies(self, workload: Workload, model: str) -> list[bytes]:
        part = next(self._parts)
        first = {RequestClass.ONLINE: {"service_tier": "priority"}}
        usual = bodies(workload, Addressee(model, self._vocab_size), part)
        preferred = bodies(workload, Addressee(model, self._vocab_size, first), part)
        return [b if priority < 0 else a for a, b, priority in zip(usual, preferred, workload.priority, strict=True)]


def promised_itl_ms(server: ServerProcess) -> float:
    """0: it does not say, or knows nothing of step times."""
    with server.turn():
        text = server.metrics_text()
    samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
    return 1e3 * next((sample.value for sample in samples if sample.name == PROMISED_ITL), 0.0)


def num_overtaken(workload: Workload, traces: Sequence[RequestTrace]) -> int:
    """Requests whose first token came after that of an equal one that had come later."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for i in sorted(range(len(traces)), key=lambda i: traces[i].arrival):
        if workload.follows[i] == NO_REQUEST and not traces[i].error:
            groups[workload.priority[i], workload.input_tokens[i], workload.output_tokens[i]].append(i)
    count = 0
    for group in groups.values():
        arrivals = np.array([traces[i].arrival for i in group])
        served = np.array([traces[i].arrival + traces[i].ttft for i in group])
        earliest = np.append(np.minimum.accumulate(served[::-1])[::-1], np.inf)  # of each and those after it
        later = np.searchsorted(arrivals, arrivals + SAME_TIME_SECONDS, side="right")
        count += int((served > earliest[later] + SAME_STEP_SECONDS).sum())
    return count


def measure_all(arguments: argparse.Namespace, folder: Path) -> tuple[dict[str, int], list[Measurement]]:
    meter = Meter(folder, arguments)
    sources = [s.scaled(arguments.divisor, arguments.pauses) for s in SOURCES if is_wanted(s, arguments)]
    if not sources:
        sys.exit(f"{arguments.data} holds none of the traces asked for")
    command = f"{arguments.server_command} {arguments.server_options}".strip()
    policies = {policy: f"{command} --scheduling-policy {policy}" for policy in POLICIES}
    found = []
    with contestants.running(folder, policies) as servers:
        by_name = {server.name: server for server in servers}
        ttft_ms = meter.warm_up(servers)
        for source, seed in itertools.product(sources, range(arguments.seeds)):
            capacity = meter.capacity(by_name["fcfs"], source, seed)
            for turn, load in enumerate(arguments.loads):
                order = servers[turn % len(servers) :] + servers[: turn % len(servers)]
                found += meter.measure(order, Cell(source, load, seed), capacity, ttft_ms)
    return {source.name: len(meter.rows(source, 0)) for source in sources}, found


def is_wanted(source: Source, arguments: argparse.Namespace) -> bool:
    is_named = not arguments.traces or source.name in arguments.traces
    return is_named and (arguments.data / f"{source.name}.csv.gz").is_file()


# ---- the page ----

Runs = Mapping[tuple[str, float, str], Sequence[Measurement]]  # trace, load, policy


def grouped(measurements: Sequence[Measurement]) -> Runs:
    runs: dict[tuple[str, float, str], list[Measurement]] = defaultdict(list)
    for m in sorted(measurements, key=lambda m: (m.load, POLICIES.index(m.policy))):
        runs[m.trace, m.load, m.policy].append(m)
    return {key: runs[key] for name in dict.fromkeys(m.trace for m in measurements) for key in runs if key[0] == name}


def gains(runs: Runs) -> str:
    """Attainment of ours less that of each other, in points; by seed where there are several."""
    rows = []
    for trace, load in dict.fromkeys(key[:2] for key in runs):
        ours = runs[trace, load, OURS]
        cells = []
        for policy in POLICIES[1:]:
            pairs = zip(ours, runs[trace, load, policy], strict=True)
            points = [100 * (a.attainment.both - b.attainment.both) for a, b in pairs]
            by_seed = f" ({', '.join(f'{p:+.1f}' for p in points)})" if len(points) > 1 else ""
            cells.append(f"{np.mean(points):+.1f}{by_seed}")
        rows.append([trace, f"{load:g}", *cells])
    return render(GAINS, rows)


def row(key: tuple[str, float, str], runs: Sequence[Measurement]) -> list[str]:
    """The mean of its seeds."""

    def mean(*path: str) -> float:
        values: list[float] = []
        for run in runs:
            value: Any = run
            for name in path:
                value = getattr(value, name, None)
            if value is not None:
                values.append(value)
        return float(np.mean(values)) if values else float("nan")

    shares = [100 * mean("attainment", name) for name in ("both", "ttft", "itl")]
    p50, p99, itl = mean("report", "ttft_ms", "p50"), mean("report", "ttft_ms", "p99"), mean("report", "itl_ms", "p99")
    known = [run for run in runs if run.num_overtaken is not None]
    overtaken = ratio(sum(run.num_overtaken or 0 for run in known), sum(run.attainment.num_requests for run in known))
    cells = f"{shares[0]:.1f}", f"{shares[1]:.0f} / {shares[2]:.0f}", f"{p50:.0f} / {p99:.0f}", f"{itl:.1f}"
    return [key[0], f"{key[1]:g}", key[2], *cells, f"{100 * overtaken:.1f}" if known else "-"]


def describe(document: Document, arguments: argparse.Namespace) -> str:
    machine, runs = document.machine, grouped(document.measurements)
    noise = float(np.median([m.noise_ratio for m in document.measurements]))
    refused = sum(m.num_refused for m in document.measurements)
    errors = sum(m.report.num_errors for m in document.measurements) - refused
    targets = [m.targets for m in document.measurements]
    promises = np.percentile([target.itl_ms for target in targets], [0, 50, 100])
    counts = ", ".join(f"{num} of {name}" for name, num in document.num_requests.items())
    lines = [
        "# Every trace, live",
        "",
        f"**Measured.** `{document.command}`, {document.date[:10]}, commit {document.commit}; {machine.cpu}, "
        f"{machine.num_cores} cores, load average before {machine.load_average:.2f}; others used "
        f"{noise:.0%} of a core (median). Model {document.model}, three servers with no flag but the policy (and "
        f"`{arguments.server_options}`), in turns. The same on simulated hardware: [traces](traces.md).",
        "",
        f"Scaled: prompts and answers are 1/{document.divisor} of the traces' lengths, pauses {arguments.pauses:g} of "
        f"theirs. Load is relative to the rate at which `fcfs` is done with the same requests when all are there at "
        f"once. {PRIORITY_SHARE:.0%} of the requests, drawn, say `service_tier: priority`. Targets: TTFT "
        f"{targets[0].ttft_ms:g} ms (eight times a prompt of {TARGET_PROMPT} tokens alone on `fcfs`, {LEAST_TTFT_MS} "
        f"at least), ITL at P99 what `{OURS}` says that it promises then ({promises[1]:.1f} ms in the median, "
        f"{promises[0]:.1f} to {promises[2]:.1f}: it learns); no server is told them. "
        f"{arguments.seeds} seeds. Requests of a "
        f"run: {counts}. Refused: {refused}; failed: {errors}.",
        "",
        "Overtaken: requests (%) whose first token came after that of an equal one (priority, lengths of prompt and "
        "answer) that had come later; not known where prompts share something.",
        "",
        "## Attainment of hocket less that of the others, in points",
        "",
        gains(runs),
        "",
        "## By trace; shares in %, latencies in ms",
        "",
        render(HEADER, [row(key, found) for key, found in runs.items()]),
    ]
    return "\n".join(lines) + "\n"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of NAME.csv.gz")
    parser.add_argument("--traces", nargs="+", help="only these names")
    parser.add_argument("--model", default="15m", help="demo, 15m, 100m, 0.5b or a checkpoint's folder")
    parser.add_argument("--divisor", type=int, default=4, help="of lengths: a power of two up to 16")
    parser.add_argument("--pauses", type=float, default=0.1, help="share of the pauses between turns")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.8, 1.1])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=48_000, help="of prompts and answers, per run")
    parser.add_argument("--least", type=int, default=40, help="requests per run at least")
    parser.add_argument("--most", type=int, default=200, help="requests per run at most")
    parser.add_argument("--server-command", default=contestants.OUR_COMMAND)
    parser.add_argument("--server-options", default="--kv-cache-memory-bytes 176M", help="for every policy")
    parser.add_argument("--output", type=Path, default=contestants.ROOT / "docs" / "results")
    parser.add_argument("--quick", action="store_true", help="short runs, to see whether everything works")
    args = parser.parse_args(arguments)
    if args.quick:
        args.loads, args.seeds, args.tokens, args.least = [0.8], 1, 4000, 10
    return args


def main() -> None:
    contestants.prepare_process()
    arguments = parse_arguments()
    date, machine, folder = results.now(), results.this_machine(), contestants.model_folder(arguments.model)
    num_requests, measurements = measure_all(arguments, folder)
    command = shlex.join(["python", "-m", "bench.run.recorded.traces", *sys.argv[1:]])
    document = Document(
        command, date, results.commit(), machine, folder.name, arguments.divisor, num_requests, measurements
    )
    raw = contestants.RESULTS / f"traces-{date.replace(':', '')}.json"
    raw.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    arguments.output.mkdir(parents=True, exist_ok=True)
    page = wrapped(describe(document, arguments))
    (arguments.output / "traces_live.md").write_text(page)
    print(f"\n{page}\nwritten to {os.path.relpath(arguments.output)} and {os.path.relpath(raw)}")


if __name__ == "__main__":
    main()
