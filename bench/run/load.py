"""Load for any one server that speaks OpenAI's streaming completions; prints the report as JSON.

    python -m bench.run.load http://127.0.0.1:8000 --vocab-size 8192 --concurrency 8 --num-requests 32
    python -m bench.run.load http://127.0.0.1:8000 --vocab-size 8192 --arrivals poisson:4 --num-requests 100
    python -m bench.run.load http://127.0.0.1:8000 --vocab-size 8192 --arrivals gamma:4:cv5 --num-requests 100
    python -m bench.run.load http://127.0.0.1:8000 --vocab-size 8192 --trace day.csv.gz                # as recorded
    python -m bench.run.load http://127.0.0.1:8000 --vocab-size 8192 --trace chats.csv.gz \\
        --arrivals poisson:1 --think-s 5

With --concurrency the loop is closed: that many requests are in flight, a new one starts when one ends. Otherwise it is
open: requests arrive on their own schedule, whether or not the server keeps up. A trace has lengths, recorded times and
sessions (the columns of `hocket simulate`); with --arrivals sessions begin by that process instead, and each later turn
follows the answer after a pause. --offline-in-flight keeps offline jobs going beside.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from bench.lib.load.live_load import Addressee, bodies, drive
from bench.lib.load.load_client import LoadClient, closed_loop, kept_in_flight
from bench.lib.load.load_report import LoadReport, summarize
from bench.lib.load.request_trace import RequestTrace
from bench.lib.load.slo import Attainment, Targets, attainment
from bench.lib.load.workload import Workload as FixedWorkload
from schedcore.api.time_slice import shorten_time_slice
from schedcore.simulation.workloads.arrivals import SYNTAX, ArrivalProcess
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.traces import read_trace
from schedcore.simulation.workloads.workload import Workload, make_workload

OFFLINE_SEED = 1 << 20  # apart from the online prompts


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    online: LoadReport
    attainment: Attainment | None = None  # if there are targets
    offline: LoadReport | None = None  # jobs that ended while online requests came


def make_open_workload(arguments: argparse.Namespace) -> Workload:
    """What arrives by itself: of a trace, or of fixed lengths."""
    if arguments.trace is None:
        num = arguments.num_requests
        prompts = Prompts.unrelated([arguments.prompt_len] * num)
        return make_workload(arguments.arrivals.times(num, arguments.seed), prompts, [arguments.output_len] * num)
    trace = read_trace(arguments.trace).fitting(arguments.max_model_len).head(arguments.num_requests)
    if arguments.arrivals is None:
        return trace.workload()
    return trace.paced_workload(arguments.arrivals, think_s=arguments.think_s, seed=arguments.seed)


def offline_bodies(arguments: argparse.Namespace, model: str) -> list[bytes]:
    lengths = arguments.offline_len
    workload = FixedWorkload(*lengths, arguments.vocab_size, OFFLINE_SEED + arguments.seed)
    return [workload.body(i, model, arguments.offline_fields) for i in range(arguments.num_offline)]


async def run(arguments: argparse.Namespace) -> Outcome:
    def show(trace: RequestTrace) -> None:
        print("." if not trace.error else "E", end="", file=sys.stderr, flush=True)

    async with LoadClient(arguments.url, show) as client:
        model = await client.model_name()
        jobs = offline_bodies(arguments, model)
        addressee = Addressee(model, arguments.vocab_size)
        fixed = FixedWorkload(arguments.prompt_len, arguments.output_len, arguments.vocab_size, arguments.seed)
        cpu_start = time.process_time()
        async with kept_in_flight(client, jobs, arguments.offline_in_flight) as offline:
            if arguments.concurrency is not None:
                asked = [fixed.body(i, model) for i in range(arguments.num_requests)]
                traces = await closed_loop(client, asked, arguments.concurrency)
            else:
                workload = make_open_workload(arguments)
                asked = bodies(workload, addressee, arguments.seed)
                traces = await drive(client, workload, asked)
        cpu_seconds = time.process_time() - cpu_start
    targets = Targets(arguments.ttft_ms, arguments.itl_ms)
    return Outcome(
        summarize(traces, cpu_seconds),
        attainment(traces, targets) if targets != Targets(None, None) else None,
        summarize(offline) if arguments.offline_in_flight else None,
    )


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="such as http://127.0.0.1:8000")
    parser.add_argument("--vocab-size", type=int, required=True, help="prompt token ids are drawn below this")
    parser.add_argument("--num-requests", type=int, default=64)
    parser.add_argument("--prompt-len", type=int, default=128, help="tokens (default: 128)")
    parser.add_argument("--output-len", type=int, default=128, help="tokens (default: 128)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and arrivals; a new one avoids prefix hits")
    parser.add_argument("--concurrency", type=int, help="closed loop: requests in flight")
    parser.add_argument("--arrivals", type=ArrivalProcess.parse, metavar="PROCESS", help=f"open loop: {SYNTAX}")
    parser.add_argument("--trace", type=Path, help="CSV with input_tokens, output_tokens, arrival_s, session_id")
    parser.add_argument("--think-s", type=float, default=0.0, help="mean pause before a later turn, with --arrivals")
    parser.add_argument("--max-model-len", type=int, default=4096, help="rows of the trace beyond are left out")
    parser.add_argument("--ttft-ms", type=float, help="target, for attainment and goodput")
    parser.add_argument("--itl-ms", type=float, help="target, for attainment and goodput")
    parser.add_argument("--offline-in-flight", type=int, default=0, help="offline jobs kept in flight beside")
    parser.add_argument("--offline-len", type=int, nargs=2, default=[128, 256], metavar=("IN", "OUT"))
    parser.add_argument("--num-offline", type=int, default=2000, help="offline jobs at most")
    flex: dict[str, Any] = {"service_tier": "flex"}
    parser.add_argument("--offline-fields", type=json.loads, default=flex, help="JSON, added to offline requests")
    args = parser.parse_args(arguments)
    if (args.concurrency is None) == (args.arrivals is None and args.trace is None):
        parser.error("say either --concurrency, or --arrivals or --trace or both")
    return args


def main() -> None:
    shorten_time_slice()
    outcome = uvloop.run(run(parse_arguments()))
    print(file=sys.stderr)
    print(msgspec.json.format(msgspec.json.encode(outcome)).decode())


if __name__ == "__main__":
    main()
