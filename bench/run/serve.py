"""The benchmark of the whole server: HTTP in, tokens out, at several concurrencies.

    python -m bench.run.serve                                   # the demo model and the random 15 M and 100 M models
    python -m bench.run.serve --models 15m --concurrency 1 8
    python -m bench.run.serve --peer vllm --peer-command "vllm serve {model} --port {port} --dtype bfloat16"

Starts our server, and the peer if one is given, on the same weights; measures them cell by cell in turns with the
same prompts; prints one table per model and writes everything to bench/results/ as JSON.
What the columns mean: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import msgspec
import uvloop

from bench.lib import contestants, results
from bench.lib.load.load_client import LoadClient, closed_loop
from bench.lib.load.load_report import summarize
from bench.lib.load.request_trace import RequestTrace
from bench.lib.load.workload import Workload, fitted_workload
from bench.lib.model.weight_bytes import multiplied_weights, streamed_weight_bytes
from bench.lib.server.cpu_use import CpuUse, read_cpu_use
from bench.lib.server.server_process import ServerProcess
from bench.lib.server.step_time import read_step_time
from bench.run.parts.machine_limits import arithmetic_speed, read_bandwidth

MIN_REQUESTS = 8
WARM_UP_TOKENS = 16
MAX_TRIES = 10  # of a cell that others disturb


class Progress:
    """One line on stderr that says what is being measured and how far it is."""

    def __init__(self, title: str, num_requests: int) -> None:
        self._title = title
        self._num_requests = num_requests
        self._num_finished = 0

    def __call__(self, trace: RequestTrace) -> None:
        self._num_finished += 1
        if sys.stderr.isatty():
            self._write(f"\r{self._title}: {self._num_finished}/{self._num_requests} requests")

    def close(self, outcome: str) -> None:
        start, end = ("\r", "\033[K\n") if sys.stderr.isatty() else ("", "\n")
        self._write(f"{start}{self._title}: {outcome}{end}")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def run_cell(server: ServerProcess, workload: Workload, indices: range, concurrency: int, title: str) -> results.Cell:
    """Sends the prompts `indices` to the server, `concurrency` at a time."""
    progress = Progress(title, len(indices))

    async def load() -> tuple[list[RequestTrace], CpuUse]:
        async with LoadClient(server.base_url, progress) as client:
            model = await client.model_name()
            bodies = [workload.body(index, model) for index in indices]
            before = read_cpu_use(server)
            return await closed_loop(client, bodies, concurrency), read_cpu_use(server).since(before)

    with server.turn():
        step_before = read_step_time(server.metrics_text())
        traces, cpu = uvloop.run(load())
        step_after = read_step_time(server.metrics_text())
    step = step_after.since(step_before) if step_before and step_after else None
    report = summarize(traces, cpu.client)
    speed = f"{report.output_tokens_per_second:.0f} tokens/s"
    progress.close(f"{speed}, {report.num_errors} errors, noise {cpu.noise_ratio:.0%}")
    return results.Cell(server.name, concurrency, report, step, cpu.noise_ratio)


class CellRunner:
    """Measures cells of one model; no prompt is sent to a server twice, so that none is in its prefix cache."""

    def __init__(self, model: str, workload: Workload, max_noise: float) -> None:
        self._model = model
        self._workload = workload
        self._max_noise = max_noise
        self._num_prompts: Counter[str] = Counter()  # per server

    def measure(self, server: ServerProcess, concurrency: int, num_requests: int) -> results.Cell:
        """The first cell that is quiet enough, or the quietest of MAX_TRIES."""
        cells: list[results.Cell] = []
        while len(cells) < MAX_TRIES and not any(cell.noise_ratio <= self._max_noise for cell in cells):
            first = self._num_prompts[server.name]
            self._num_prompts[server.name] += num_requests
            title = f"{self._model} {server.name} c={concurrency}"
            cells.append(run_cell(server, self._workload, range(first, first + num_requests), concurrency, title))
        return min(cells, key=lambda cell: cell.noise_ratio)


def measure_model(folder: Path, servers: Sequence[ServerProcess], arguments: argparse.Namespace) -> list[results.Cell]:
    """All cells of one model: per concurrency and repeat, each server in turn."""
    warm_up = CellRunner(
        f"{folder.name} warm-up", fitted_workload(folder, arguments.input_len, WARM_UP_TOKENS, 1), math.inf
    )
    runner = CellRunner(
        folder.name, fitted_workload(folder, arguments.input_len, arguments.output_len), arguments.max_noise
    )
    for concurrency, server in product(arguments.concurrency, servers):
        warm_up.measure(server, concurrency, concurrency)
    return [
        runner.measure(server, concurrency, max(MIN_REQUESTS, arguments.rounds * concurrency))
        for concurrency, _, server in product(arguments.concurrency, range(arguments.repeats), servers)
    ]


def benchmark_model(folder: Path, commands: dict[str, str], arguments: argparse.Namespace) -> results.ModelResult:
    """Starts the servers one after the other, measures them in turns, and stops them."""
    limit = results.ReadLimit(read_bandwidth(os.cpu_count() or 1), streamed_weight_bytes(folder))
    products = results.ProductLimit(arithmetic_speed(os.cpu_count() or 1), *multiplied_weights(folder))
    with contestants.running(folder, commands) as servers:
        idle_rss = [server.rss_bytes() for server in servers]
        cells = measure_model(folder, servers, arguments)
        facts = contestants.facts(servers, idle_rss)
    workload = fitted_workload(folder, arguments.input_len, arguments.output_len)
    return results.ModelResult(folder.name, workload.prompt_len, workload.output_len, limit, facts, cells, products)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Benchmark the server, alone or beside a peer.")
    parser.add_argument(
        "--models", nargs="+", default=["demo", "15m", "100m"], help="demo, 15m, 100m, 0.5b or checkpoint folders"
    )
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--input-len", type=int, default=128, help="prompt tokens")
    parser.add_argument("--output-len", type=int, default=128, help="output tokens")
    parser.add_argument(
        "--rounds", type=int, default=3, help=f"requests per cell = rounds x c, at least {MIN_REQUESTS}"
    )
    parser.add_argument("--repeats", type=int, default=1, help="measure each cell so often and show the median")
    parser.add_argument(
        "--max-noise", type=float, default=math.inf, help="cores used by others above which a cell is measured again"
    )
    contestants.add_server_options(parser)
    return parser.parse_args()


def main() -> None:
    contestants.prepare_process()
    arguments = parse_arguments()
    commands = contestants.commands(arguments)
    date, machine, models = results.now(), results.this_machine(), []
    print(f"{machine.cpu}, {machine.num_cores} cores, load {machine.load_average:.2f}, commit {results.commit()}")
    contestants.RESULTS.mkdir(parents=True, exist_ok=True)
    output = contestants.RESULTS / f"serve-{date.replace(':', '')}.json"
    for name in arguments.models:
        models.append(benchmark_model(contestants.model_folder(name), commands, arguments))
        print(f"\n{results.describe(models[-1])}\n")
        document = results.Results(date, results.commit(), machine, models)
        output.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    print(f"written to {os.path.relpath(output)}")


if __name__ == "__main__":
    main()
