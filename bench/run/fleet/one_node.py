"""What a fleet's gateway costs: one node behind it against `hocket serve` alone, in turns, on one machine.

    python -m bench.run.fleet.one_node [--streams 16] [--tokens 256] [--blocks 8] [--plain]

Both are up all the time, the same engine under the same options, and take turns: a block is `streams` streams at once
(tokens per second), then single requests one after the other (TTFT). Blocks of the two are paired; the order changes
from pair to pair. Goals: at most 3 % of the tokens per second, 0.3 ms of TTFT. Frames go through TLS, unless `--plain`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import uvloop

from bench.lib.load.http_stream import HttpStream
from bench.lib.table import render

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.real_fleet import fleet  # noqa: E402 (a folder, no package)
from fakes.served import serving  # noqa: E402
from gateway.fleet.certificates import make_certificates  # noqa: E402

ENGINE = ("--dtype", "float32", "--kv-cache-memory-bytes", "64M", "--num-threads", "1")
T_95 = {4: 3.18, 6: 2.57, 8: 2.36, 10: 2.26, 12: 2.20, 16: 2.13, 20: 2.09}  # two-sided, by number of pairs
HEADER = ("", "tokens/s", "us of CPU per token", "TTFT p50 ms", "p90", "p99", "longest")


@dataclass
class Side:
    """Of the comparison: where it is, which processes it has, and what was measured, one entry per block."""

    name: str
    url: str
    processes: list[psutil.Process]
    tokens_per_s: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)  # per token, of all its processes
    ttft_ms: list[list[float]] = field(default_factory=list)

    def cpu_seconds(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)

    def row(self) -> list[str]:
        ttft = [value for block in self.ttft_ms for value in block]
        marks = [f"{np.percentile(ttft, q):.3f}" for q in (50, 90, 99, 100)]
        return [self.name, f"{np.mean(self.tokens_per_s):.0f}", f"{np.mean(self.cpu_us):.1f}", *marks]


async def ask(url: str, number: int, num_tokens: int) -> float:
    """Seconds to the first piece with a token."""
    fields = {"temperature": 0, "ignore_eos": True, "stream": True, "max_tokens": num_tokens}
    body = json.dumps({"prompt": f"Story {number}: once upon a time", "cache_salt": f"{number}", **fields}).encode()
    stream = await HttpStream.connect(url)
    begin = time.perf_counter()
    response = await stream.request("POST", "/v1/completions", body)
    assert response.status == 200, response.body()
    stream.close()
    return next(at for at, line in response.events() if line.startswith(b"data: {")) - begin


async def block(side: Side, number: int, args: argparse.Namespace) -> None:
    begin, used = time.perf_counter(), side.cpu_seconds()
    await asyncio.gather(*(ask(side.url, 1000 * number + i, args.tokens) for i in range(args.streams)))
    num_tokens = args.streams * args.tokens
    side.tokens_per_s.append(num_tokens / (time.perf_counter() - begin))
    side.cpu_us.append(1e6 * (side.cpu_seconds() - used) / num_tokens)
    side.ttft_ms.append([1e3 * await ask(side.url, 1000 * number + 500 + i, 2) for i in range(args.singles)])


async def measure(sides: Sequence[Side], args: argparse.Namespace) -> None:
    for number in range(-1, args.blocks):  # the first one warms up
        for side in sides if number % 2 else reversed(sides):
            await block(side, number + 1, args)
            if number < 0:
                for values in (side.tokens_per_s, side.cpu_us, side.ttft_ms):
                    values.clear()


def interval(values: Sequence[float]) -> str:
    """Mean and its 95 % interval (Student's t)."""
    n = len(values)
    nearest = max((known for known in T_95 if known <= n), default=4)
    half = T_95[nearest] * float(np.std(values, ddof=1)) / n**0.5
    return f"{np.mean(values):.3f} ({np.mean(values) - half:.3f} to {np.mean(values) + half:.3f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256, help="of each stream")
    parser.add_argument("--singles", type=int, default=60, help="requests one after the other, per block")
    parser.add_argument("--blocks", type=int, default=8, help="of each side, beside one that warms up; even is best")
    parser.add_argument("--plain", action="store_true", help="plain TCP between gateway and node")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="one-node-") as temporary:
        folder = Path(temporary)
        for name in ("alone", "fleet"):
            (folder / name).mkdir()
        cluster = None if args.plain else folder / "cluster"
        if cluster is not None:
            make_certificates(cluster)
        quiet = ("--no-access-log",)
        with (
            serving(folder / "alone", *ENGINE, *quiet) as alone,
            fleet(folder / "fleet", cluster, *quiet) as running,
        ):
            node = running.add("a", *ENGINE)
            running.wait_for("a", "up")
            pids = [running.server.process.pid, node.manager.pid, node.engine_pid]
            sides = [
                Side("hocket serve", alone.url, [psutil.Process(alone.process.pid), alone.engine]),
                Side("gateway and node", running.server.url, [psutil.Process(pid) for pid in pids]),
            ]
            uvloop.run(measure(sides, args))
    one, other = sides
    print(render(HEADER, [side.row() for side in sides]))
    ratios = [b / a for a, b in zip(one.tokens_per_s, other.tokens_per_s, strict=True)]
    later = [float(np.median(b) - np.median(a)) for a, b in zip(one.ttft_ms, other.ttft_ms, strict=True)]
    dearer = [b - a for a, b in zip(one.cpu_us, other.cpu_us, strict=True)]
    print(f"\ntokens per second of the fleet over those alone: {interval(ratios)}; goal: at least 0.97")
    print(f"median TTFT of the fleet less that alone, ms: {interval(later)}; goal: at most 0.3")
    print(f"CPU per token of the fleet less that alone, us: {interval(dearer)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
