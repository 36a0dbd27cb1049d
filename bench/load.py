"""Load generator for any server that speaks OpenAI's streaming completions; light, since it shares the server's cores.

    python bench/load.py http://127.0.0.1:8000 --vocab-size 8192 --concurrency 8 --num-requests 32
    python bench/load.py http://127.0.0.1:8000 --vocab-size 8192 --rate 4 --cv 2 --num-requests 100

With --concurrency the loop is closed: that many requests are in flight, a new one starts when one ends.
With --rate it is open: requests arrive on their own schedule, whether or not the server keeps up.
Prints the report as JSON.
"""

from __future__ import annotations

import argparse
import sys
import time

import msgspec
import uvloop
from arrivals import gamma_arrivals
from load_client import LoadClient, closed_loop, open_loop
from load_report import summarize
from request_trace import RequestTrace
from workload import Workload


async def run(arguments: argparse.Namespace) -> None:
    workload = Workload(arguments.prompt_len, arguments.output_len, arguments.vocab_size, arguments.seed)

    def show(trace: RequestTrace) -> None:
        print("." if not trace.error else "E", end="", file=sys.stderr, flush=True)

    async with LoadClient(arguments.url, show) as client:
        model = await client.model_name()
        bodies = [workload.body(i, model) for i in range(arguments.num_requests)]
        cpu_start = time.process_time()
        if arguments.rate is None:
            traces = await closed_loop(client, bodies, arguments.concurrency)
        else:
            arrivals = gamma_arrivals(len(bodies), arguments.rate, arguments.cv, arguments.seed)
            traces = await open_loop(client, bodies, arrivals)
    report = summarize(traces, time.process_time() - cpu_start)
    print(file=sys.stderr)
    print(msgspec.json.format(msgspec.json.encode(report)).decode())


def main() -> None:
    parser = argparse.ArgumentParser(description="Drive a server that speaks OpenAI's streaming completions.")
    parser.add_argument("url", help="such as http://127.0.0.1:8000")
    parser.add_argument("--vocab-size", type=int, required=True, help="prompt token ids are drawn below this")
    parser.add_argument("--num-requests", type=int, default=64)
    parser.add_argument("--prompt-len", type=int, default=128, help="tokens (default: 128)")
    parser.add_argument("--output-len", type=int, default=128, help="tokens (default: 128)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and arrivals; a new one avoids prefix hits")
    parser.add_argument("--cv", type=float, default=1.0, help="burstiness of the open loop (default: 1, Poisson)")
    loop = parser.add_mutually_exclusive_group(required=True)
    loop.add_argument("--concurrency", type=int, help="closed loop: requests in flight")
    loop.add_argument("--rate", type=float, help="open loop: requests per second")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
