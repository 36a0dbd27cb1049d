"""What guessed tokens bring: the same requests with --speculation auto and off, in turns, in one process.

    python -m bench.run.speculation [worker/demo_model] [--concurrency 1 8 32 64] [--texts edit agent chat noise form]
                                          [--tokens 128] [--rounds 5] [--dtype float32]

edit: a file, and the same file begun again. agent: calls of tools and their results, over and over. chat: questions.
noise: random tokens. form: questions whose answers follow a JSON schema, so that forced tokens are guessed only.
Answers are greedy, or drawn with equal seeds (--temperature). Tokens per second of the engine alone, without gateway:
the median over rounds, in each of which both have their turn. same: whether all answers are those without guesses;
anything but yes in float32 is an error, and the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from bench.lib.json_schemas.long_answer import LONG_ANSWER
from bench.lib.results import commit, now, this_machine
from bench.lib.table import render
from schedcore.api.config import EngineConfig
from schedcore.api.types import EngineRequest, Grammar, GrammarKind, SamplingParams
from worker.process.engine import Engine
from worker.process.engine_process import build_engine

GATEWAY = b"bench"
MODES = ("off", "auto")
HEADER = ("text", "c", "off tokens/s", "auto tokens/s", "ratio", "least", "guessed", "right", "tokens/step", "same")
NAMES = ("count", "total", "price", "item", "order", "user", "name", "row", "field", "value")


def edit_text(rng: random.Random) -> str:
    lines = [f"def {rng.choice(NAMES)}_{i}({rng.choice(NAMES)}): return {rng.choice(NAMES)} + {i}" for i in range(8)]
    return "\n".join([*lines, "", *lines[:4], ""])


def agent_text(rng: random.Random) -> str:
    def call(i: int) -> str:
        place = rng.choice(NAMES)
        return (
            f'{{"name": "search", "arguments": {{"query": "{place}", "page": {i}}}}}\n{{"status": "ok", "rows": {i}}}'
        )

    return "\n".join(call(i) for i in range(6)) + "\n"


def chat_text(rng: random.Random) -> str:
    return f"What is {rng.randrange(100)} plus {rng.randrange(100)}, and what do you think of {rng.choice(NAMES)}s?\n"


TEXTS: dict[str, Callable[[random.Random], str]] = {
    "edit": edit_text,
    "agent": agent_text,
    "chat": chat_text,
    "form": chat_text,
}
FORM = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(LONG_ANSWER))  # nobody's answer is over within --tokens


def prompts(kind: str, num: int, tokenizer: Tokenizer, vocab_size: int) -> list[list[int]]:
    rng = random.Random(f"{kind} {num}")
    if kind == "noise":
        return [[rng.randrange(6, vocab_size) for _ in range(120)] for _ in range(num)]
    return [tokenizer.encode(TEXTS[kind](rng)).ids for _ in range(num)]


@dataclass
class Turn:
    seconds: float
    answers: dict[int, list[int]]
    num_steps: int
    num_guessed: int
    num_right: int

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.answers.values())) / self.seconds


def take_turn(engine: Engine, kind: str, asked: list[list[int]], args: argparse.Namespace) -> Turn:
    """Every request to its end; the caches are warm from the first turn on, for both."""
    before = engine.stats()
    for i, prompt in enumerate(asked):
        sampling = SamplingParams(temperature=args.temperature, seed=i if args.temperature else None)
        grammar = FORM if kind == "form" else None
        stops = [args.end_token] if grammar else []
        engine.add(GATEWAY, EngineRequest(i, prompt, args.tokens, sampling, stop_token_ids=stops, grammar=grammar))
    answers: dict[int, list[int]] = defaultdict(list)
    begin = time.perf_counter()
    while engine.has_work():
        engine.step()
        for delta in engine.take_deltas().get(GATEWAY, []):
            answers[delta.request_id] += delta.token_ids
    seconds = time.perf_counter() - begin
    after = engine.stats()
    return Turn(
        seconds,
        answers,
        after.num_steps - before.num_steps,
        after.num_guessed_tokens - before.num_guessed_tokens,
        after.num_right_guesses - before.num_right_guesses,
    )


def row(kind: str, engines: dict[str, Engine], asked: list[list[int]], args: argparse.Namespace) -> list[str]:
    turns: dict[str, list[Turn]] = defaultdict(list)
    for i in range(args.rounds + 1):
        for mode in MODES if i % 2 else MODES[::-1]:
            turns[mode].append(take_turn(engines[mode], kind, asked, args))
    off, auto = (turns[mode][1:] for mode in MODES)  # the first one warms up
    ratios = [b.tokens_per_second / a.tokens_per_second for a, b in zip(off, auto, strict=True)]
    last = auto[-1]
    num_tokens = sum(map(len, last.answers.values()))
    is_same = all(turn.answers == off[0].answers for turn in (*off, *auto))
    speeds = [statistics.median(turn.tokens_per_second for turn in of_mode) for of_mode in (off, auto)]
    return [
        kind,
        str(len(asked)),
        *(f"{speed:.0f}" for speed in speeds),
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f}",
        str(last.num_guessed),
        str(last.num_right),
        f"{num_tokens / last.num_steps / len(asked):.2f}",
        "yes" if is_same else "NO",
    ]


def make_engine(mode: str, args: argparse.Namespace) -> Engine:
    config = EngineConfig(
        model=str(args.model),
        dtype=args.dtype,
        quantization=args.quantization,
        speculation=mode,
        max_num_seqs=max(256, *args.concurrency),
        cache_memory_bytes=256 << 20,
        host_cache_bytes=0,
        max_ttft_ms=0,
    )
    return build_engine(config, time.monotonic())[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=Path("worker/demo_model"))
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--texts", nargs="+", choices=[*TEXTS, "noise"], default=[*TEXTS, "noise"])
    parser.add_argument("--tokens", type=int, default=128, help="of every answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantization")
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    ends = json.loads((args.model / "generation_config.json").read_text())["eos_token_id"]
    args.end_token = ends[0] if isinstance(ends, list) else ends
    engines = {mode: make_engine(mode, args) for mode in MODES}
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    machine = this_machine()
    print(f"{machine.cpu}, {machine.num_cores} cores, load {machine.load_average:.1f}, {now()[:10]}, commit {commit()}")
    rows = []
    for kind in args.texts:
        for num in args.concurrency:
            asked = prompts(kind, num, tokenizer, tokenizer.get_vocab_size())
            rows.append(row(kind, engines, asked, args))
            print(render(HEADER, rows[-1:]).splitlines()[-1], flush=True)
    print(render(HEADER, rows))
    return int(args.dtype == "float32" and any(cells[-1] != "yes" for cells in rows))


if __name__ == "__main__":
    sys.exit(main())
