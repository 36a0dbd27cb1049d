"""A storm of advisories from one tenant: what a refusal costs the gateway, and what another tenant's streams feel.

    python -m bench.run.gateway.advisory_storm cost  [--tenants 200] [--seconds 5]
    python -m bench.run.gateway.advisory_storm storm [--model demo] [--rate 10000] [--connections 64] [--streams 16]
                                                     [--rounds 5]

`cost`: many tenants, each beyond its rate but below the pace at which refusals are told at once; CPU time of the
gateway's process (user and system, sockets included) over the refusals that it answered.

`storm`: streams of one tenant, in turns calm, beside a storm against a sink, and beside the same storm against the
server. The storm and the sink (`bench/lib/load/storm_load.py`) run in processes of their own, on the cores of the
server: what they take from it shows in `sink`, and what the server itself lets a storm do is `storm` over `sink`.
Advisories are offered open loop: each connection writes its share of the rate whether or not it was answered, and what
the sockets no longer take counts as offered. `--reconnect` makes a new connection for each instead. `--null-step-ms`
leaves out the engine's computing, and gives server and clients cores of their own: what is left is what the gateway
itself does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import re
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import SpawnContext
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import uvloop

from bench.lib.load.http_stream import HttpStream
from bench.lib.load.storm_load import Storm, blow, sink
from bench.lib.server.cpu_use import read_cpu_use
from bench.lib.server.server_process import ServerProcess, end_with_signals

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.byte_tokenizer import write_byte_checkpoint  # noqa: E402 (a folder, no package)
from schedcore.api.time_slice import shorten_time_slice  # noqa: E402

NUM_FIRST = 16  # gaps of a stream that do not count: others come in
ARMS = ("calm", "sink", "storm")


async def gaps(url: str, key: str, num_streams: int, num_tokens: int) -> list[float]:
    """Seconds between two tokens of each stream, but for the first ones."""
    fields = {"prompt": "Once upon a time", "stream": True, "max_tokens": num_tokens, "ignore_eos": True, "seed": 1}
    found: list[float] = []

    async def one() -> None:
        stream = await HttpStream.connect(url, {"Authorization": f"Bearer {key}"})
        response = await stream.request("POST", "/v1/completions", json.dumps(fields).encode())
        assert response.status == 200, response.body()
        stream.close()
        times = [moment for moment, event in response.events() if b'"text":"' in event]
        found.extend(later - earlier for earlier, later in itertools.pairwise(times[NUM_FIRST:]))

    await asyncio.gather(*(one() for _ in range(num_streams)))
    return found


def gateway_process(port: int) -> psutil.Process:
    listening = [c for c in psutil.net_connections("tcp4") if c.status == psutil.CONN_LISTEN and c.laddr.port == port]
    return psutil.Process(listening[0].pid)


def refusals(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics") as response:
        text = response.read().decode()
    return {m[1]: float(m[2]) for m in re.finditer(r'hocket_advisories_refused_total\{reason="(\w+)"\} (\S+)', text)}


def serve(args: argparse.Namespace, keys: list[str], folder: Path) -> ServerProcess:
    flags = " ".join(f"--api-key {key}" for key in keys)
    model, hocket = args.model, f"{sys.executable} -m gateway.cli.main serve"
    if args.null_step_ms:
        model = str(write_byte_checkpoint(folder / "bytes"))
        rate = args.streams * 1e3 / args.null_step_ms
        paths = f"PYTHONPATH={ROOT} NULL_ENGINE_TOKENS_PER_SECOND={rate}"
        hocket = f"env {paths} {sys.executable} -m bench.run.gateway.null_engine"
    command = f"cd {ROOT} && exec {hocket} {{model}} --port {{port}} {flags}"
    return ServerProcess("hocket", f"{command} {args.serve}", model, folder / "server.log")


def measure_cost(args: argparse.Namespace) -> str:
    keys = [f"tenant-{i}" for i in range(args.tenants)]
    args.serve += " --max-advisories-per-second 0.001"
    with tempfile.TemporaryDirectory() as folder, serve(args, keys, Path(folder)) as server:
        gateway = gateway_process(urlsplit(server.base_url).port or 0)
        Storm(server.base_url, keys, 10.0 * args.tenants, args.tenants).run(1.0)  # uses up the budgets
        before, counted = gateway.cpu_times(), refusals(server.base_url)
        storm = Storm(server.base_url, keys, args.rate, args.tenants)
        storm.run(args.seconds)
        after = gateway.cpu_times()
        now = refusals(server.base_url)
    num_refused = sum(now.values()) - sum(counted.values())
    user, system = (after.user - before.user) / storm.num_answers, (after.system - before.system) / storm.num_answers
    return (
        f"{storm.num_offered / args.seconds:,.0f} advisories/s of {args.tenants} tenants, {num_refused:,.0f} refused "
        f"of {storm.num_answers:,}: {(user + system) * 1e6:.0f} us of gateway CPU each "
        f"({user * 1e6:.0f} user, {system * 1e6:.0f} system)"
    )


@dataclass(frozen=True)
class Round:
    """One arm's turn."""

    gaps: list[float]
    gateway_share: float  # of a core
    client_share: float  # of a core, the storm's process
    noise: float  # in cores, everybody but server and streams: the storm's process, the sink's, others
    num_offered: int = 0
    num_answers: int = 0

    @property
    def p99(self) -> float:
        return p99(self.gaps)


@contextlib.contextmanager
def blowing(
    args: argparse.Namespace, context: SpawnContext, url: str, counts: list[tuple[int, int, float]]
) -> Iterator[None]:
    """A storm meanwhile; what came of it is in `counts` afterwards."""
    start, stop, queue = context.Event(), context.Event(), context.Queue()
    storm = Storm(url, ["storm"], args.rate, args.connections, args.reconnect)
    blower = context.Process(target=blow, args=(storm, start, stop, queue))
    blower.start()
    try:
        start.wait()
        time.sleep(args.warm_up)
        yield
    finally:
        stop.set()
        counts.append(queue.get())
        blower.join()


@contextlib.contextmanager
def sinking(context: SpawnContext) -> Iterator[str]:
    """The sink's address."""
    stop = context.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        process = context.Process(target=sink, args=(listener, stop))
        process.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stop.set()
            process.join()


def measure_round(
    arm: str, args: argparse.Namespace, context: SpawnContext, server: ServerProcess, gateway: psutil.Process
) -> Round:
    counts: list[tuple[int, int, float]] = []
    with contextlib.ExitStack() as stack:
        if arm == "sink":
            stack.enter_context(blowing(args, context, stack.enter_context(sinking(context)), counts))
        elif arm == "storm":
            stack.enter_context(blowing(args, context, server.base_url, counts))
        before, cpu = read_cpu_use(server), sum(gateway.cpu_times()[:2])
        found = uvloop.run(gaps(server.base_url, "calm", args.streams, args.tokens))
        use = read_cpu_use(server).since(before)
        share = (sum(gateway.cpu_times()[:2]) - cpu) / use.wall
    num_offered, num_answers, client = counts[0] if counts else (0, 0, 0.0)
    return Round(found, share, client / (use.wall + args.warm_up), use.noise_ratio, num_offered, num_answers)


def part_cores(server: ServerProcess) -> None:
    """The first core for the server, the others for its clients, as if those were machines of their own."""
    first, *others = psutil.Process().cpu_affinity()
    for process in server.processes():
        process.cpu_affinity([first])
    psutil.Process().cpu_affinity(others or [first])


def measure_storm(args: argparse.Namespace) -> str:
    rounds: dict[str, list[Round]] = {arm: [] for arm in ARMS}
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, serve(args, ["storm", "calm"], Path(folder)) as server:
        gateway = gateway_process(urlsplit(server.base_url).port or 0)
        if args.null_step_ms:
            part_cores(server)
        uvloop.run(gaps(server.base_url, "calm", args.streams, 64))
        for i in range(args.rounds):
            for arm in ARMS if i % 2 == 0 else reversed(ARMS):
                rounds[arm].append(measure_round(arm, args, context, server, gateway))
        refused = refusals(server.base_url)
    lines = [describe(arm, rounds[arm]) for arm in ARMS]
    lines += [compare("sink", "calm", rounds), compare("storm", "calm", rounds), compare("storm", "sink", rounds)]
    return "\n".join([*lines, f"refused: {refused}"])


def describe(arm: str, rounds: list[Round]) -> str:
    gaps = [gap for turn in rounds for gap in turn.gaps]
    return (
        f"{arm:5}: ITL p50 {statistics.median(gaps) * 1e3:.2f} ms, p99 {p99(gaps) * 1e3:.2f} ms "
        f"(rounds {' '.join(f'{turn.p99 * 1e3:.2f}' for turn in rounds)}); "
        f"gateway at {statistics.mean(turn.gateway_share for turn in rounds):.1%} of a core, "
        f"the storm's process {statistics.mean(turn.client_share for turn in rounds):.1%}, "
        f"all but server and streams {statistics.mean(turn.noise for turn in rounds):.0%}; "
        f"{sum(turn.num_offered for turn in rounds):,} advisories offered, "
        f"{sum(turn.num_answers for turn in rounds):,} answered"
    )


def compare(arm: str, base: str, rounds: dict[str, list[Round]]) -> str:
    ratios = sorted(one.p99 / other.p99 for one, other in zip(rounds[arm], rounds[base], strict=True))
    together = [p99([gap for turn in rounds[name] for gap in turn.gaps]) for name in (arm, base)]
    return (
        f"ITL p99, {arm} over {base}: median of rounds {statistics.median(ratios) - 1:+.1%} "
        f"({ratios[0] - 1:+.1%} to {ratios[-1] - 1:+.1%}), all rounds together {together[0] / together[1] - 1:+.1%}"
    )


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    cost, storm = modes.add_parser("cost"), modes.add_parser("storm")
    for mode in (cost, storm):
        mode.add_argument("--model", default="demo", help="a directory; python -m bench.run.random_model 15m 100m")
        mode.add_argument("--serve", default="--no-access-log", help="further options of hocket serve")
        mode.add_argument("--rate", type=float, default=10_000.0, help="advisories offered per second")
    cost.add_argument("--tenants", type=int, default=200)
    cost.add_argument("--seconds", type=float, default=5.0)
    storm.add_argument("--connections", type=int, default=64)
    storm.add_argument("--reconnect", action="store_true", help="a new connection for every advisory")
    storm.add_argument("--streams", type=int, default=16, help="of the calm tenant")
    storm.add_argument("--tokens", type=int, default=1000, help="per stream")
    storm.add_argument("--rounds", type=int, default=5, help="of all three arms")
    storm.add_argument("--null-step-ms", type=float, help="an engine that computes nothing and takes so long per step")
    storm.add_argument("--warm-up", type=float, default=3.0, help="seconds of storm before it counts")
    parser.set_defaults(null_step_ms=None)
    args = parser.parse_args()
    end_with_signals()
    shorten_time_slice()  # or the streams' times would be those at which the server has nothing else to do
    print(measure_cost(args) if args.mode == "cost" else measure_storm(args))


if __name__ == "__main__":
    main()
