"""A storm of advisories from one tenant: what a refusal costs the gateway, and what another tenant's streams feel.

    python bench/advisory_storm.py cost  [--tenants 200] [--seconds 5]
    python bench/advisory_storm.py storm [--model demo] [--rate 10000] [--connections 64] [--streams 4] [--rounds 5]

`cost`: many tenants, each beyond its rate but below the pace at which refusals are told at once; CPU time of the
gateway's process (user and system, sockets included) over the refusals that it answered.

`storm`: streams of one tenant with and without advisories of another, in turns, so that a noisy machine is noisy for
both. Advisories are offered open loop: each connection writes its share of the rate whether or not it was answered,
and what the sockets no longer take counts as offered. `--reconnect` makes a new connection for each instead. The storm
runs in a process of its own; on a machine with few cores it takes time from the server that no server can win back.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import uvloop
from http_stream import HttpStream
from server_process import ServerProcess

ROOT = Path(__file__).resolve().parents[1]
SLICE_SECONDS = 0.01  # in which a connection writes its share at once
BODY = b'{"session_id": "storm", "event": "typing", "eta_ms": 1000}'


def advisory(key: str, host: str) -> bytes:
    head = f"POST /v1/advisories HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY


class Sender(asyncio.Protocol):
    """Writes until the socket takes no more, and counts the answers that come back."""

    def __init__(self) -> None:
        self.num_answers = 0
        self.is_stuck = False
        self.is_open = True
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.num_answers += data.count(b"HTTP/1.1 ")

    def pause_writing(self) -> None:
        self.is_stuck = True

    def resume_writing(self) -> None:
        self.is_stuck = False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False


@dataclass
class Storm:
    url: str
    keys: list[str]
    rate: float  # advisories per second, all together
    num_connections: int
    reconnects: bool = False
    num_offered: int = 0
    num_answers: int = 0
    _senders: list[Sender] = field(default_factory=list)

    async def run(self, seconds: float, stop: Event | None = None) -> None:
        until = time.perf_counter() + seconds
        per_slice = self.rate * SLICE_SECONDS / self.num_connections
        await asyncio.gather(*(self._blow(i, per_slice, until, stop) for i in range(self.num_connections)))
        self.num_answers += sum(sender.num_answers for sender in self._senders)

    async def _blow(self, index: int, per_slice: float, until: float, stop: Event | None) -> None:
        request = advisory(self.keys[index % len(self.keys)], urlsplit(self.url).netloc)
        sender, owed, due = await self._connect(), index / self.num_connections, time.perf_counter()
        while due < until and not (stop is not None and stop.is_set()):
            owed += per_slice
            due += SLICE_SECONDS
            for _ in range(int(owed)):
                self.num_offered += 1
                if self.reconnects or not sender.is_open:
                    self._close(sender)
                    sender = await self._connect()
                if not sender.is_stuck and sender.transport is not None:
                    sender.transport.write(request)
            owed -= int(owed)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        self._close(sender)

    async def _connect(self) -> Sender:
        address = urlsplit(self.url)
        sender = Sender()
        try:
            await asyncio.get_running_loop().create_connection(lambda: sender, address.hostname, address.port)
        except OSError:
            sender.is_open = False
        self._senders.append(sender)
        return sender

    def _close(self, sender: Sender) -> None:
        if sender.transport is not None:
            sender.transport.abort()
        if self.reconnects and sender in self._senders:
            self._senders.remove(sender)
            self.num_answers += sender.num_answers


def blow(storm: Storm, stop: Event, counts: "multiprocessing.Queue[tuple[int, int]]") -> None:  # noqa: UP037
    """In a process of its own, until told to stop."""
    uvloop.run(storm.run(3600.0, stop))
    counts.put((storm.num_offered, storm.num_answers))


async def gaps(url: str, key: str, num_streams: int, num_tokens: int) -> list[float]:
    """Seconds between two tokens of each stream."""
    fields = {"prompt": "Once upon a time", "stream": True, "max_tokens": num_tokens, "ignore_eos": True, "seed": 1}
    found: list[float] = []

    async def one() -> None:
        stream = await HttpStream.connect(url, {"Authorization": f"Bearer {key}"})
        response = await stream.request("POST", "/v1/completions", json.dumps(fields).encode())
        assert response.status == 200, response.body()
        stream.close()
        times = [moment for moment, event in response.events() if b'"text":"' in event]
        found.extend(later - earlier for earlier, later in itertools.pairwise(times))

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
    command = f"cd {ROOT} && exec {sys.executable} -m gateway.cli.main serve {{model}} --port {{port}} {flags}"
    return ServerProcess("hocket", f"{command} {args.serve}", args.model, folder / "server.log")


def measure_cost(args: argparse.Namespace) -> str:
    keys = [f"tenant-{i}" for i in range(args.tenants)]
    args.serve += " --max-advisories-per-second 0.001"
    with tempfile.TemporaryDirectory() as folder, serve(args, keys, Path(folder)) as server:
        gateway = gateway_process(urlsplit(server.base_url).port or 0)
        uvloop.run(Storm(server.base_url, keys, 10.0 * args.tenants, args.tenants).run(1.0))  # uses up the budgets
        before, counted = gateway.cpu_times(), refusals(server.base_url)
        storm = Storm(server.base_url, keys, args.rate, args.tenants)
        uvloop.run(storm.run(args.seconds))
        after = gateway.cpu_times()
        now = refusals(server.base_url)
    num_refused = sum(now.values()) - sum(counted.values())
    user, system = (after.user - before.user) / storm.num_answers, (after.system - before.system) / storm.num_answers
    return (
        f"{storm.num_offered / args.seconds:,.0f} advisories/s of {args.tenants} tenants, {num_refused:,.0f} refused "
        f"of {storm.num_answers:,}: {(user + system) * 1e6:.0f} us of gateway CPU each "
        f"({user * 1e6:.0f} user, {system * 1e6:.0f} system)"
    )


def measure_storm(args: argparse.Namespace) -> str:
    lines, ratios = [], []
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, serve(args, ["storm", "calm"], Path(folder)) as server:
        gateway = gateway_process(urlsplit(server.base_url).port or 0)
        uvloop.run(gaps(server.base_url, "calm", args.streams, 64))
        for _ in range(args.rounds):
            calm = p99(uvloop.run(gaps(server.base_url, "calm", args.streams, args.tokens)))
            stop, counts = context.Event(), context.Queue()
            storm = Storm(server.base_url, ["storm"], args.rate, args.connections, args.reconnect)
            blower = context.Process(target=blow, args=(storm, stop, counts))
            blower.start()
            time.sleep(args.warm_up)
            cpu, started = sum(gateway.cpu_times()[:2]), time.perf_counter()
            stormy = p99(uvloop.run(gaps(server.base_url, "calm", args.streams, args.tokens)))
            share = (sum(gateway.cpu_times()[:2]) - cpu) / (time.perf_counter() - started)
            stop.set()
            num_offered, num_answers = counts.get()
            blower.join()
            ratios.append(stormy / calm)
            lines.append(
                f"ITL p99 {calm * 1e3:.2f} ms calm, {stormy * 1e3:.2f} ms in the storm ({stormy / calm - 1:+.1%}); "
                f"{num_offered:,} advisories offered, {num_answers:,} answered; gateway at {share:.0%} of a core"
            )
        lines.append(f"refused: {refusals(server.base_url)}")
    return "\n".join([*lines, f"median change of the ITL p99: {statistics.median(ratios) - 1:+.1%}"])


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    cost, storm = modes.add_parser("cost"), modes.add_parser("storm")
    for mode in (cost, storm):
        mode.add_argument("--model", default="demo")
        mode.add_argument("--serve", default="--no-access-log", help="further options of hocket serve")
        mode.add_argument("--rate", type=float, default=10_000.0, help="advisories offered per second")
    cost.add_argument("--tenants", type=int, default=200)
    cost.add_argument("--seconds", type=float, default=5.0)
    storm.add_argument("--connections", type=int, default=64)
    storm.add_argument("--reconnect", action="store_true", help="a new connection for every advisory")
    storm.add_argument("--streams", type=int, default=4, help="of the calm tenant")
    storm.add_argument("--tokens", type=int, default=1000, help="per stream")
    storm.add_argument("--rounds", type=int, default=5, help="without and with the storm, in turns")
    storm.add_argument("--warm-up", type=float, default=4.0, help="seconds of storm before it counts")
    args = parser.parse_args()
    print(measure_cost(args) if args.mode == "cost" else measure_storm(args))


if __name__ == "__main__":
    main()
