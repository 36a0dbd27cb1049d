"""Online requests beside long jobs: stock vLLM, vLLM steered by our core, and our own worker, in one run.

    python -m bench.run.vllm.coserving --vllm-python build/vllm-env/bin/python    # docs/results/vllm_coserving.*
    python -m bench.run.vllm.coserving --vllm-python ... --servers stock plugin --plugin-itl-ms 80 40 \\
        --name vllm_plugin --seconds 30                                    # without our gateway
    python -m bench.run.vllm.coserving --vllm-python ... --model demo --dtype float32 --quick --output /tmp

Online: Poisson at --rate, 128 tokens in, 32 out. Offline: --in-flight long jobs, 128 in, 256 out, each followed by
another. To stock vLLM, under its policy `priority`, and to our scheduler class in it offline jobs have priority 1; to
our servers they are flex requests. Every server is measured alone first, then with the jobs; jobs that end in the
online requests' time are counted. --pace: beside the jobs our servers are told a time per token by each online request,
so many times what it took alone; 0: the targets alone, whose slack is the jobs'.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from bench.lib import contestants, results
from bench.lib.load.live_load import Addressee, bodies, drive
from bench.lib.load.load_client import LoadClient, kept_in_flight
from bench.lib.load.load_report import Distribution, LoadReport, ratio, summarize
from bench.lib.load.slo import Attainment, Targets, attainment
from bench.lib.load.workload import fitted_workload
from bench.lib.server.server_process import ServerProcess
from bench.lib.table import render_part, wrapped, write_csv
from bench.lib.vllm_contestants import Contestant, add_vllm_options, vllm_contestants
from schedcore.api.types import RequestClass
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import Workload, make_workload

HEADER = ("server", "beside jobs", "TTFT p50", "p99", "TPOT p50", "p99", "attained %", "jobs done", "errors")
LEAST_MS = 0.1  # of a pace
SHOWN = (0, 1, 2, 3, 4, 5, 6, 7)


class Measurement(msgspec.Struct, frozen=True):
    server: str
    command: str
    has_jobs: bool
    online: LoadReport
    attainment: Attainment
    num_jobs: int


class Document(msgspec.Struct, frozen=True):
    command: str
    date: str
    commit: str
    machine: results.Machine
    model: str
    targets: Targets
    measurements: list[Measurement]


class VllmCoserving:
    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self._folder, self._arguments = folder, arguments
        self._online = fitted_workload(folder, *arguments.online_len)
        self._targets = Targets(arguments.ttft_ms, arguments.itl_ms)
        self._parts = itertools.count(1)  # no two loads share a prefix

    def measure(self, contestant: Contestant) -> Iterator[Measurement]:
        """Alone, and beside the jobs."""
        log = contestants.RESULTS / f"vllm-coserving-{contestant.name.replace(' ', '-')}.log"
        with ServerProcess(contestant.name, contestant.command, shlex.quote(str(self._folder)), log) as server:
            alone = uvloop.run(self._run(server, contestant, {}, has_jobs=False))
            yield alone
            is_told = self._arguments.pace and contestant.takes_targets and alone.online.tpot_ms is not None
            told = {"tpot_target_ms": max(LEAST_MS, self._arguments.pace * alone.online.tpot_ms.p50)} if is_told else {}
            yield uvloop.run(self._run(server, contestant, told, has_jobs=True))

    async def _run(
        self, server: ServerProcess, contestant: Contestant, told: dict[str, float], *, has_jobs: bool
    ) -> Measurement:
        args = self._arguments
        async with LoadClient(server.base_url) as client, LoadClient(server.base_url) as job_client:
            fields = {RequestClass.OFFLINE: contestant.job_fields, RequestClass.ONLINE: told}
            addressee = Addressee(await client.model_name(), self._online.vocab_size, fields)
            await drive(client, *self._load(addressee, args.online_len, 3, 1.0))  # warm
            workload, asked = self._load(addressee, args.online_len, args.rate, args.seconds)
            async with contextlib.AsyncExitStack() as stack:
                jobs: list[Any] = []
                if has_jobs:
                    lanes = kept_in_flight(job_client, self._jobs(addressee), args.in_flight)
                    jobs = await stack.enter_async_context(lanes)
                traces = await drive(client, workload, asked)
                num_jobs = sum(not trace.error for trace in jobs)
        report = summarize(traces)
        measured = attainment(traces, self._targets)
        print(f"{contestant.name}, jobs {has_jobs}: attained {measured.both:.1%}, {num_jobs} jobs", file=sys.stderr)
        return Measurement(contestant.name, server.command, has_jobs, report, measured, num_jobs)

    def _load(self, to: Addressee, lengths: Sequence[int], rate: float, seconds: float) -> tuple[Workload, list[bytes]]:
        num_in, num_out = lengths
        process = ArrivalProcess(rate)
        times = process.times(4 * max(4, process.num_in(seconds)), self._arguments.seed)
        times = times[times <= seconds]
        workload = make_workload(times, Prompts.unrelated(np.full(times.size, num_in)), np.full(times.size, num_out))
        return workload, bodies(workload, to, next(self._parts))

    def _jobs(self, addressee: Addressee) -> Iterator[bytes]:
        """Without end."""
        num_in, num_out = self._arguments.job_len
        while True:
            prompts = Prompts.unrelated(np.full(64, num_in)).in_part(next(self._parts))
            for i in range(64):
                yield addressee.body(prompts.prompt_token_ids(i).tolist(), num_out, RequestClass.OFFLINE)


def describe(document: Document, arguments: argparse.Namespace) -> str:
    machine, targets = document.machine, document.targets
    lines = [
        "# Online requests beside long jobs: " + ", ".join(dict.fromkeys(m.server for m in document.measurements)),
        "",
        f"`{document.command}`, {document.date}, commit {document.commit}, {machine.cpu}, model {document.model}, "
        f"{arguments.dtype}. Online: Poisson, {arguments.rate:g} requests/s for {arguments.seconds:g} s, "
        f"{arguments.online_len[0]} tokens in, {arguments.online_len[1]} out; targets TTFT {targets.ttft_ms:g} ms, ITL "
        f"{targets.itl_ms:g} ms, pace {arguments.pace:g}. Jobs: {arguments.in_flight} in flight, "
        f"{arguments.job_len[0]} in, {arguments.job_len[1]} out. Milliseconds. All columns: {arguments.name}.csv.",
        "",
        render_part(HEADER, rows(document), SHOWN),
        "",
        *verdict(document.measurements),
    ]
    return "\n".join(lines) + "\n"


def verdict(measurements: Sequence[Measurement]) -> list[str]:
    """What the jobs cost an online request, and how many of them get done, against the first server."""
    said = []
    first = measurements[1]
    for alone, beside in zip(measurements[::2], measurements[1::2], strict=True):
        if alone.online.tpot_ms is None or beside.online.tpot_ms is None:
            continue
        slower = ratio(beside.online.tpot_ms.p50, alone.online.tpot_ms.p50)
        share = beside.num_jobs / max(1, first.num_jobs)
        said.append(
            f"- {beside.server}: TPOT p50 beside the jobs {slower:.2f} x that alone, "
            f"{share:.0%} of the jobs of {first.server}, "
            f"{beside.attainment.both:.1%} of online requests within both targets."
        )
    return said


def rows(document: Document) -> list[list[str]]:
    return [_row(m) for m in document.measurements]


def _row(m: Measurement) -> list[str]:
    def ms(found: Distribution | None) -> list[str]:
        return ["-", "-"] if found is None else [f"{found.p50:.0f}", f"{found.p99:.0f}"]

    jobs = str(m.num_jobs) if m.has_jobs else "-"
    latencies = [*ms(m.online.ttft_ms), *ms(m.online.tpot_ms)]
    attained = f"{100 * m.attainment.both:.1f}"
    return [m.server, "yes" if m.has_jobs else "no", *latencies, attained, jobs, str(m.online.num_errors)]


def plot(document: Document, target: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with matplotlib.rc_context({"font.size": 9}):
        figure, axis = plt.subplots(figsize=(5.2, 3.2))
        for m in document.measurements:
            if m.has_jobs and m.online.tpot_ms is not None:
                axis.scatter([m.num_jobs], [m.online.tpot_ms.p50], label=m.server)
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("jobs done")
        axis.set_ylabel("online TPOT p50 beside them (ms)")
        axis.set_title(f"{document.model}, {document.date[:10]}, {document.commit}")
        axis.legend()
        figure.tight_layout()
        figure.savefig(target, dpi=120)
        plt.close(figure)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_vllm_options(parser, ["stock", "vllm", "own"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=1.5, help="online requests per second")
    parser.add_argument("--online-len", type=int, nargs=2, default=[128, 32], metavar=("IN", "OUT"))
    parser.add_argument("--in-flight", type=int, default=64, help="jobs")
    parser.add_argument("--job-len", type=int, nargs=2, default=[128, 256], metavar=("IN", "OUT"))
    parser.add_argument("--ttft-ms", type=float, default=500.0)
    parser.add_argument("--pace", type=float, default=1.2, help="times per token beside the jobs over those alone")
    parser.add_argument("--itl-ms", type=float, default=100.0)
    parser.add_argument("--quick", action="store_true", help="short runs, to see whether everything works")
    arguments = parser.parse_args()
    arguments.name = arguments.name or "vllm_coserving"
    if arguments.quick:
        arguments.seconds, arguments.in_flight, arguments.job_len = 5.0, 8, [32, 16]
    return arguments


def main() -> None:
    contestants.prepare_process()
    arguments = parse_arguments()
    contestants.RESULTS.mkdir(parents=True, exist_ok=True)
    date, machine, folder = results.now(), results.this_machine(), contestants.model_folder(arguments.model)
    bench = VllmCoserving(folder, arguments)
    with tempfile.TemporaryDirectory(prefix="hocket-vllm-coserving-") as data:
        found = [m for contestant in vllm_contestants(arguments, Path(data)) for m in bench.measure(contestant)]
    command = shlex.join(["python", "-m", "bench.run.vllm.coserving", *sys.argv[1:]])
    targets = Targets(arguments.ttft_ms, arguments.itl_ms)
    document = Document(command, date, results.commit(), machine, folder.name, targets, found)
    (contestants.RESULTS / f"{arguments.name}-{date.replace(':', '')}.json").write_bytes(msgspec.json.encode(document))
    page = describe(document, arguments)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / f"{arguments.name}.md").write_text(wrapped(page))
    write_csv(arguments.output / f"{arguments.name}.csv", HEADER, rows(document))
    plot(document, arguments.output / f"{arguments.name}.png")
    print(f"\n{page}")


if __name__ == "__main__":
    main()
