"""A batch whose rows share documents: rows per second where decodes read shared keys once for all, and each for itself.

    python -m bench.run.shared_documents               # 100m and 15m, four minutes each, on a quiet machine
    python -m bench.run.shared_documents --quick       # two minutes together

An engine by itself, without gateway or sockets, with --rows offline rows in random order over --documents documents. It
takes turns of --seconds with `_kernels.set_shared_keys()` on and off: the same engine, rows and cache. The
first turns of each kind are left out: the cache fills. Rows per second are those of the median turn. Tokens out count
when they come, so a turn has parts of rows at both of its ends; rows are tokens over --output-len.

What an engine without sharing is: this one with it off, but for chunks of prompts, which fetch their keys ahead since.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from bench.lib.model.random_model import ensure_checkpoint
from bench.lib.table import render
from schedcore.api.config import EngineConfig
from schedcore.api.types import EngineRequest, RequestClass, SamplingParams
from worker import _kernels, ops
from worker.process.engine import Engine
from worker.process.engine_process import build_engine

GATEWAY = b"bench"
WARM_TURNS = 2  # of each kind
HEADER = ("model", "shared", "turns", "rows/s", "least", "most", "decodes a step", "step ms", "on / off")


@dataclass(frozen=True)
class Turn:
    seconds: float
    num_tokens: int
    num_steps: int

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


class Batch:
    """An engine that has all rows."""

    def __init__(self, model: str, args: argparse.Namespace) -> None:
        folder = ensure_checkpoint(model, args.folder)
        config = EngineConfig(
            model=str(folder),
            device="cpu",
            num_threads=args.threads,
            kv_cache_dtype=args.kv_cache_dtype,
            max_num_seqs=args.max_num_seqs,
            max_num_waiting=args.rows,
            max_model_len=args.document_len + args.question_len + args.output_len + 16,
        )
        self.engine: Engine = build_engine(config, time.monotonic())[0]
        draw, tokens = random.Random(0), range(3, 200)
        documents = [draw.choices(tokens, k=args.document_len) for _ in range(args.documents)]
        for i in range(1, args.rows + 1):
            prompt = draw.choice(documents) + draw.choices(tokens, k=args.question_len)
            sampling = SamplingParams(temperature=0.0)
            request = EngineRequest(i, prompt, args.output_len, sampling, request_class=RequestClass.OFFLINE)
            self.engine.add(GATEWAY, request)
        self.num_open = args.rows
        gc.collect()
        gc.freeze()  # as in an engine

    def turn(self, seconds: float, *, is_shared: bool) -> Turn:
        _kernels.set_shared_keys(is_shared)
        num_tokens = num_steps = 0
        begin = time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds and self.num_open:
            self.engine.step()
            num_steps += 1
            for delta in self.engine.take_deltas().get(GATEWAY, ()):
                if delta.error is not None:
                    raise RuntimeError(delta.error.message)
                num_tokens += len(delta.token_ids)
                self.num_open -= bool(delta.finish_reason)
        return Turn(now - begin, num_tokens, num_steps)


def measure(model: str, args: argparse.Namespace) -> list[list[str]]:
    batch = Batch(model, args)
    turns: dict[bool, list[Turn]] = {True: [], False: []}
    for i in range(args.turns):
        for is_shared in (i % 2 == 0, i % 2 == 1):  # on off off on: neither is always the first of a pair
            turn = batch.turn(args.seconds, is_shared=is_shared)
            if not batch.num_open:
                break  # its last rows were alone
            turns[is_shared].append(turn)
    _kernels.set_shared_keys(True)
    kept = {is_shared: all_turns[WARM_TURNS:] for is_shared, all_turns in turns.items()}
    if not all(kept.values()):
        raise SystemExit(f"{model}: all rows were done after {len(turns[True])} turns; more --rows, or shorter turns")
    median = {k: statistics.median(t.tokens_per_second for t in kept[k]) for k in kept}
    return [
        [
            model,
            "on" if is_shared else "off",
            str(len(of_kind)),
            *(f"{rate / args.output_len:.2f}" for rate in spread(of_kind, median[is_shared])),
            f"{sum(t.num_tokens for t in of_kind) / sum(t.num_steps for t in of_kind):.1f}",
            f"{1e3 * sum(t.seconds for t in of_kind) / sum(t.num_steps for t in of_kind):.1f}",
            f"{median[True] / median[False]:.2f}" if is_shared else "",
        ]
        for is_shared, of_kind in kept.items()
    ]


def spread(turns: list[Turn], median: float) -> tuple[float, float, float]:
    rates = [turn.tokens_per_second for turn in turns]
    return median, min(rates), max(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["100m", "15m"], help="random models (bench/run/random_model.py)")
    parser.add_argument("--folder", type=Path, default=Path("models"))
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--documents", type=int, default=50)
    parser.add_argument("--document-len", type=int, default=1500)
    parser.add_argument("--question-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--threads", type=int, default=ops.DEFAULT_THREADS)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=15, help="of each kind")
    parser.add_argument("--quick", action="store_true", help="two minutes: turns of 4 s, 7 of each kind")
    args = parser.parse_args()
    if args.quick:
        args.seconds, args.turns = 4.0, 7
    rows = [row for model in args.models for row in measure(model, args)]
    print(
        f"{_kernels.isa()}, {args.threads} threads; {args.rows} rows over {args.documents} documents of "
        f"{args.document_len}, questions of {args.question_len}, {args.output_len} out\n"
    )
    print(render(HEADER, rows))


if __name__ == "__main__":
    main()
