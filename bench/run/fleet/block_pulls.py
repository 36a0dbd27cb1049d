"""Cached blocks from one engine's host to another's: bytes per second and CPU over TCP and NIXL, beside computing them.

    python -m bench.run.fleet.block_pulls [--model demo] [--megabytes 256] [--rounds 5] [--block-kib 128 2048]

Givers are processes of their own on this machine, with blocks of the sizes named; what is pulled is checked and counted
as engines do. NIXL has rows where it is installed: over what UCX takes between processes of one machine, and over its
TCP (UCX_TLS=tcp). CPU is of giver and taker and their NIXL processes, in ms per MiB that came. Last, what a token
costs: computed by the model in prompts of --tokens, and pulled at each row's rate.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from bench.run.parts.tiers import ask, drain, make_engine
from schedcore.api.types import PeerSource
from schedcore.peers.block_server import BlockServer
from schedcore.peers.block_transport import PeerBlocks
from schedcore.peers.nixl_window import NixlWindows, has_nixl
from schedcore.peers.tcp_transport import TcpTransport
from schedcore.peers.window_transport import WindowPeer, WindowTransport
from schedcore.tiers.block_digest import Key
from schedcore.tiers.session_files import SessionName

MIB = 1 << 20
START_SECONDS = 30.0
BLOCK_SIZE = 16
FINGERPRINT = INCARNATION = "bench"


class Store:
    """A BlockStore of random blocks, as many as are asked for, few of them different."""

    def __init__(self, block_bytes: int) -> None:
        self._blocks = [bytearray(os.urandom(block_bytes)) for _ in range(max(1, 32 * MIB // block_bytes))]

    def session_tokens(self, name: SessionName) -> bytes | None:
        return None

    def recent_sessions(self, max_num_sessions: int) -> list[SessionName]:
        return []

    def held(self, keys: Sequence[Key]) -> bytes:
        return bytes([1] * len(keys))

    def copies(self, keys: Sequence[Key]) -> list[bytearray | None]:
        return [bytearray(self._blocks[int.from_bytes(key[:4], "little") % len(self._blocks)]) for key in keys]


@dataclass(frozen=True, slots=True)
class Row:
    transport: str
    block_bytes: int
    bytes_per_second: float  # median
    best: float
    cpu_ms_per_mib: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="that computes, beside it (default: demo)")
    parser.add_argument("--tokens", type=int, default=900, help="of its prompts (default: 900)")
    parser.add_argument("--megabytes", type=int, default=256, help="MiB per pull (default: 256)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block-kib", type=int, nargs="+", default=[128, 2048], help="KiB per block")
    parser.add_argument("--give", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.give:
        give(args.give)
        return
    kinds = {"tcp": None, **({"nixl": "all", "nixl, UCX_TLS=tcp": "tcp"} if has_nixl() else {})}
    rows = [
        measure(name, kinds[name], kib << 10, args.megabytes * MIB, args.rounds)
        for kib in args.block_kib
        for name in kinds
    ]
    if not has_nixl():
        print("no rows of NIXL: it is not installed here (make nixl-env)")
    compare(rows, *prefill(args.model, args.tokens, args.rounds))


def give(block_bytes: int) -> None:
    """The giver's process: until its standard input ends."""
    windows = NixlWindows(is_loopback=True) if has_nixl() else None
    store = Store(block_bytes)
    server = BlockServer("tcp://127.0.0.1:0", None, store, FINGERPRINT, block_bytes, INCARNATION, windows)
    print(server.endpoint, flush=True)
    sys.stdin.read()
    server.close()


def measure(name: str, tls: str | None, block_bytes: int, num_bytes: int, rounds: int) -> Row:
    """tls: UCX_TLS; None: without NIXL."""
    variables = os.environ if tls is None else {**os.environ, "UCX_TLS": tls}
    os.environ.update(variables)
    command = [sys.executable, "-m", "bench.run.fleet.block_pulls", "--give", str(block_bytes)]
    giver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)
    assert giver.stdout is not None
    source = PeerSource(giver.stdout.readline().strip(), INCARNATION)
    tcp = TcpTransport(None, FINGERPRINT, block_bytes)
    transport = tcp if tls is None else WindowTransport(tcp, NixlWindows(is_loopback=True), block_bytes)
    peer = transport.connect(source)
    try:
        wait_for_windows(peer)
        keys = [os.urandom(16) for _ in range(num_bytes // block_bytes)]
        host = bytearray(num_bytes)
        places = [memoryview(host)[i * block_bytes : (i + 1) * block_bytes] for i in range(len(keys))]
        pull(peer, keys, places)  # memory and connections are there afterwards
        times, before = [], cpu_seconds(giver.pid)
        for _ in range(rounds):
            start = time.perf_counter()
            pull(peer, keys, places)
            times.append(time.perf_counter() - start)
        cpu = 1e3 * (cpu_seconds(giver.pid) - before) / (rounds * len(keys) * block_bytes / MIB)
    finally:
        peer.close()
        giver.kill()
        giver.wait()
    pulled = len(keys) * block_bytes
    row = Row(name, block_bytes, pulled / statistics.median(times), pulled / min(times), cpu)
    print(
        f"{name:20} blocks of {block_bytes >> 10:5} KiB: {row.bytes_per_second / 1e9:5.2f} GB/s, "
        f"best {row.best / 1e9:5.2f}, CPU {row.cpu_ms_per_mib:5.2f} ms per MiB",
        flush=True,
    )
    return row


def wait_for_windows(peer: PeerBlocks) -> None:
    if not isinstance(peer, WindowPeer):
        return
    start = time.monotonic()
    while not peer.try_windows():
        assert not peer.has_failed
        assert time.monotonic() - start < START_SECONDS
        time.sleep(0.01)
    print(f"  windows open after {time.monotonic() - start:.2f} s")


def pull(peer: PeerBlocks, keys: list[Key], places: list[memoryview]) -> None:
    assert all(list(peer.pull(keys, places)))


def cpu_seconds(giver: int) -> float:
    """Of this process, the giver's, and their children."""
    total = 0.0
    for root in (psutil.Process(), psutil.Process(giver)):
        for process in (root, *root.children()):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def prefill(model: str, num_tokens: int, rounds: int) -> tuple[float, float]:
    """(seconds, bytes) per token that is computed."""
    engine = make_engine(model, num_tokens, 256 * MIB, enable_prefix_caching=False)
    try:
        rng = random.Random(1)
        times = [ask(engine, i, rng.choices(range(100, 400), k=num_tokens), "") for i in range(rounds)]
        drain(engine)
        return statistics.median(times) / num_tokens, engine.stats().block_bytes / BLOCK_SIZE
    finally:
        engine.close()


def compare(rows: list[Row], seconds: float, num_bytes: float) -> None:
    print(f"a token has {num_bytes / 1024:.1f} KiB of cache; computed: {1e6 * seconds:.1f} us")
    for row in rows:
        pulled = num_bytes / row.bytes_per_second
        print(f"  pulled over {row.transport}, {row.block_bytes >> 10} KiB: {1e6 * pulled:.1f} us")


if __name__ == "__main__":
    main()
