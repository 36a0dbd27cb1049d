"""Tokens per second with a JSON schema beside those without, on one server, in turns, with the same output lengths.

    python -m bench.run.grammars.throughput [--models demo random-15m] [--concurrency 8 32] [--rounds 7] [--tokens 200]
        [--server-options "--no-json-whitespace --speculation auto"]

The schema's answers are never over within --tokens tokens. Without it, --plain makes them as long: `min_tokens` (the
default) with text, which takes the sampler a little; `ignore_eos` costs nothing, but a trained model then says special
tokens of which nobody is sent anything. A round is four requests per one in flight of the one, then of the other; the
ratio is the median over rounds of one round's two rates. CPU time of all the server's processes per token stands beside
it: it says what a schema costs where others use the machine, too. `noise` is the cores that others used; above 0.1, the
rates mean little.

The target is 0.95 at c = 8 and 32. Quiet, 2 cores: about a minute per model.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lib.json_schemas.long_answer import LONG_ANSWER
from bench.lib.load.load_client import CHAT, LoadClient
from bench.lib.model.random_model import SHAPES, ensure_checkpoint
from bench.lib.server.cpu_use import read_cpu_use
from bench.lib.server.server_process import ServerProcess, end_with_signals
from bench.lib.table import render
from schedcore.api.model_path import resolve_model

COMMAND = f"{sys.executable} -m gateway.cli.main serve {{model}} --port {{port}} --no-access-log"
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": LONG_ANSWER}}
PLAIN: dict[str, Callable[[int], dict[str, Any]]] = {
    "min_tokens": lambda num_tokens: {"min_tokens": num_tokens},
    "ignore_eos": lambda _: {"ignore_eos": True},
}
REQUESTS_PER_PLACE = 4


@dataclass(frozen=True, slots=True)
class Part:
    """Half a round."""

    tokens_per_second: float
    cpu_us_per_token: float  # of all the server's processes
    noise: float  # cores


async def run_all(url: str, bodies: list[bytes], concurrency: int) -> int:
    """Output tokens."""
    places = asyncio.Semaphore(concurrency)
    async with LoadClient(url) as client:

        async def one(body: bytes) -> int:
            async with places:
                trace = await client.send(body, path=CHAT)
            if trace.error:
                raise RuntimeError(trace.error)
            return trace.num_output_tokens

        return sum(await asyncio.gather(*map(one, bodies)))


class Turns:
    def __init__(self, server: ServerProcess, concurrency: int, asked: dict[str, Any]) -> None:
        self._server, self._concurrency, self._asked = server, concurrency, asked
        self._seeds = itertools.count()

    def part(self, form: dict[str, Any]) -> Part:
        bodies = [
            json.dumps(self._asked | form | {"seed": next(self._seeds)}).encode()
            for _ in range(REQUESTS_PER_PLACE * self._concurrency)
        ]
        before, begin = read_cpu_use(self._server), time.perf_counter()
        num_tokens = asyncio.run(run_all(self._server.base_url, bodies, self._concurrency))
        seconds = time.perf_counter() - begin
        used = read_cpu_use(self._server).since(before)
        return Part(num_tokens / seconds, 1e6 * used.server / num_tokens, used.noise_ratio)


def measure(server: ServerProcess, concurrency: int, temperature: float, args: argparse.Namespace) -> list[str]:
    asked = {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": args.tokens,
        "temperature": temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    turns = Turns(server, concurrency, asked)
    forms: tuple[dict[str, Any], ...] = (PLAIN[args.plain](args.tokens), {"response_format": FORM})
    for form in forms:
        turns.part(form)  # tables fill, the grammar is compiled
    rounds = [[turns.part(form) for form in forms] for _ in range(args.rounds)]
    ratio = statistics.median(formed.tokens_per_second / plain.tokens_per_second for plain, formed in rounds)
    plain, formed = zip(*rounds, strict=True)
    rates = [f"{statistics.median(p.tokens_per_second for p in parts):,.0f}" for parts in (plain, formed)]
    costs = [min(p.cpu_us_per_token for p in parts) for parts in (plain, formed)]
    noise = statistics.median(part.noise for parts in rounds for part in parts)
    cpu = [f"{cost:.1f}" for cost in costs]
    return [*rates, f"{ratio:.2f}", *cpu, f"{costs[0] / costs[1]:.2f}", f"{noise:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["demo", "random-15m"], help="checkpoints, or random-SHAPE")
    parser.add_argument("--models-folder", type=Path, default=Path("models"), help="where random models are")
    parser.add_argument("--concurrency", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--plain", choices=PLAIN, default="min_tokens", help="how answers without a schema get as long")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=200, help="of each answer")
    parser.add_argument("--server-options", default="", help="of hocket serve, in one word")
    args = parser.parse_args()
    end_with_signals()
    rows = []
    for name in args.models:
        shape = name.removeprefix("random-")
        folder = ensure_checkpoint(shape, args.models_folder) if shape in SHAPES else resolve_model(name)
        with tempfile.TemporaryDirectory() as scratch:
            command = f"{COMMAND} --data-dir {scratch}/data {args.server_options}"
            with ServerProcess(name, command, str(folder), Path(scratch) / "server.log") as server:
                for concurrency, temperature in itertools.product(args.concurrency, args.temperatures):
                    cells = measure(server, concurrency, temperature, args)
                    rows.append([f"{name}, c = {concurrency}, temperature {temperature:g}", *cells])
                    print(" ".join(rows[-1]), flush=True)
    header = ["", "tokens/s", "+ schema", "ratio", "CPU us/token", "+ schema", "ratio", "noise"]
    print("\n" + render(header, rows))


if __name__ == "__main__":
    main()
