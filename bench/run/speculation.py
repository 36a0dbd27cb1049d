"""What guessed tokens bring: the same requests with --speculation auto and off, in turns, in one process.

    python -m bench.run.speculation [worker/demo_model] [--concurrency 1 8 32 64] [--texts edit agent chat noise form]
                                          [--tokens 128] [--rounds 7] [--dtype float32]

edit: a file, and the same file begun again. agent: calls of tools and their results, over and over. chat: questions.
noise: random tokens. form: questions whose answers follow a JSON schema, so that forced tokens are guessed only.
--concurrency of them are served at once, and whoever is done makes room for the next, --waves times as many in all; the
clock stops where one is done that nobody follows: from there on fewer are served at once. Answers have half --tokens to
one and a half times as many, so that they do not begin and end together where nothing is guessed. Every round has
requests of its own: answers to equal ones would be guessed from the last round's. Each row of the table is a tenant,
that has had eight answers or one round of them before it is measured; first: the ratio of its very first round. Answers
are greedy, or drawn with equal seeds (--temperature). Tokens per second of the engine alone, without gateway, behind
prompts that are cached: the median over rounds, in each of which both have their turn, and how far it may be off (95 %;
what one process has for all of its rounds, as where its memory lies, is not in that). same: whether all answers are
those without guesses; anything but yes in float32 is an error, and the exit status 1.

--wide 896 24 4864: the model is made as wide and deep as that and says what it said (bench/lib/model/wide_model.py).
With --noise 0 the model itself guesses for what it has become, with --noise 0.02 a copy whose weights are off by so
much. --speculative-model: a small model that is there already.

--counted 110 5 10: steps take 110 us, 5 for each row and 10 ns for each token of its context, as engines and table
believe, whatever they take: what is decided and saved on a machine like that, counted on one that is busy.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bench.lib.json_schemas.long_answer import LONG_ANSWER
from bench.lib.model.wide_model import WideShape, write_noisy_model, write_wide_model
from bench.lib.results import commit, now, this_machine
from bench.lib.table import render
from schedcore._core import BatchPlan
from schedcore.api.config import EngineConfig
from schedcore.api.types import EngineRequest, FinishReason, Grammar, GrammarKind, SamplingParams
from worker.process.engine import Engine
from worker.process.engine_process import build_engine
from worker.runner.executor import StepResult

GATEWAY = b"bench"
MODES = ("off", "auto")
HEADER = (
    *("text", "c", "off tokens/s", "auto tokens/s", "ratio", "±", "least", "first"),
    *("guessed", "right", "tokens/step", "same"),
)
NUM_TEXTS_BEFORE = 8  # that a tenant has had when it is measured
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


def prompts(kind: str, num: int, tokenizer: Tokenizer, round_: int = 0) -> list[list[int]]:
    rng, vocab_size = random.Random(f"{kind} {num} {round_}"), tokenizer.get_vocab_size()
    if kind == "noise":
        return [[rng.randrange(6, vocab_size) for _ in range(120)] for _ in range(num)]
    return [tokenizer.encode(TEXTS[kind](rng)).ids for _ in range(num)]


Answers = dict[int, list[int]]  # by request


@dataclass
class Window:
    """From the first request to where one ends that nobody follows: as many are served at once as asked."""

    seconds: float = 0.0
    num_tokens: int = 0
    num_steps: int = 0


@dataclass
class Turn:
    answers: Answers
    window: Window
    num_guessed: int
    num_right: int

    @property
    def tokens_per_second(self) -> float:
        return self.window.num_tokens / self.window.seconds


class CountedClock:
    """An engine's clock, by which steps take what `costs` say: us per step, us per row, ns per token of context."""

    def __init__(self, engine: Engine, costs: list[float]) -> None:
        self._now = 0.0
        self._per_step, self._per_row, self._per_token = costs[0] * 1e-6, costs[1] * 1e-6, costs[2] * 1e-9
        self._executor = engine._executor
        engine._clock, engine._executor = self, self

    def __call__(self) -> float:
        return self._now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def execute(self, plan: BatchPlan) -> StepResult:
        result = self._executor.execute(plan)
        self._now += self._per_step + self._per_row * len(plan.token_ids) + self._per_token * float(plan.seq_lens.sum())
        return result


def run(
    engine: Engine, tenant: str, kind: str, asked: list[list[int]], args: argparse.Namespace, num: int, at_once: int
) -> tuple[Answers, Window]:
    """Every request to its end, so many at a time, each of half `num` tokens to one and a half times as many."""
    rng = random.Random(num)
    lengths = [rng.randint(math.ceil(num / 2), num + num // 2) for _ in asked]
    left = enumerate(asked)
    begin, window = engine._clock(), Window()

    def add(i: int, prompt: list[int]) -> None:
        sampling = SamplingParams(temperature=args.temperature, seed=i if args.temperature else None)
        grammar = FORM if kind == "form" else None
        stops = [args.end_token] if grammar else []
        engine.add(
            GATEWAY,
            EngineRequest(i, prompt, lengths[i], sampling, stop_token_ids=stops, grammar=grammar, tenant=tenant),
        )

    for i, prompt in itertools.islice(left, at_once):
        add(i, prompt)
    answers: Answers = defaultdict(list)
    num_ended = 0
    while engine.has_work():
        is_full = num_ended <= len(asked) - at_once
        if engine.step() and is_full:
            window.num_steps += 1
        for delta in engine.take_deltas().get(GATEWAY, []):
            answers[delta.request_id] += delta.token_ids
            if is_full:
                window.num_tokens += len(delta.token_ids)
            if delta.finish_reason != FinishReason.NONE:
                num_ended += 1
                for i, prompt in itertools.islice(left, 1):
                    add(i, prompt)
        if is_full:
            window.seconds = engine._clock() - begin
    return answers, window


def take_turn(
    engine: Engine, tenant: str, kind: str, asked: list[list[int]], args: argparse.Namespace, at_once: int
) -> Turn:
    run(engine, tenant, kind, asked, args, num=1, at_once=at_once)  # prompts are cached
    before = engine.stats()
    answers, window = run(engine, tenant, kind, asked, args, num=args.tokens, at_once=at_once)
    after = engine.stats()
    num_guessed = after.num_guessed_tokens - before.num_guessed_tokens
    return Turn(answers, window, num_guessed, after.num_right_guesses - before.num_right_guesses)


def row(
    kind: str, num: int, engines: dict[str, Engine], tokenizer: Tokenizer, args: argparse.Namespace
) -> tuple[str, ...]:
    num_before = 0 if args.strangers else math.ceil(NUM_TEXTS_BEFORE / num)
    turns: dict[str, list[Turn]] = defaultdict(list)
    for mode in MODES:
        take_turn(engines[mode], "warm-up", kind, prompts(kind, num, tokenizer, round_=-1), args, num)
    for i in range(num_before + args.rounds):
        asked = prompts(kind, num * args.waves, tokenizer, i)
        for mode in MODES if i % 2 else MODES[::-1]:
            tenant = f"{kind} {num} {i if args.strangers else ''}"
            turns[mode].append(take_turn(engines[mode], tenant, kind, asked, args, num))
    is_same = all(a.answers == b.answers for a, b in zip(turns["off"], turns["auto"], strict=True))
    ratios = [b.tokens_per_second / a.tokens_per_second for a, b in zip(turns["off"], turns["auto"], strict=True)]
    off, auto = (turns[mode][num_before:] for mode in MODES)
    speeds = [statistics.median(turn.tokens_per_second for turn in of_mode) for of_mode in (off, auto)]
    return (
        kind,
        str(num),
        *(f"{speed:.0f}" for speed in speeds),
        f"{statistics.median(ratios[num_before:]):.2f}",
        f"{uncertainty(ratios[num_before:]):.2f}",
        f"{min(ratios[num_before:]):.2f}",
        f"{ratios[0]:.2f}",
        str(sum(turn.num_guessed for turn in auto)),
        str(sum(turn.num_right for turn in auto)),
        f"{sum(turn.window.num_tokens for turn in auto) / sum(turn.window.num_steps for turn in auto) / num:.2f}",
        "yes" if is_same else "NO",
    )


def uncertainty(ratios: list[float]) -> float:
    """Of their median: half of an interval of 95 %, as if rounds were normally distributed."""
    return 1.96 * math.sqrt(math.pi / 2) * statistics.stdev(ratios) / math.sqrt(len(ratios)) if ratios[1:] else math.inf


def make_engine(mode: str, args: argparse.Namespace) -> Engine:
    config = EngineConfig(
        model=str(args.model),
        dtype=args.dtype,
        quantization=args.quantization,
        speculation=mode,
        speculative_model=args.speculative_model if mode == "auto" else None,
        max_num_seqs=max(256, *args.concurrency),
        cache_memory_bytes=256 << 20,
        host_cache_bytes=0,
        max_ttft_ms=0,
    )
    engine = build_engine(config, time.monotonic())[0]
    if args.counted:
        CountedClock(engine, args.counted)
    return engine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=Path("worker/demo_model"))
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--texts", nargs="+", choices=[*TEXTS, "noise"], default=[*TEXTS, "noise"])
    parser.add_argument("--tokens", type=int, default=128, help="of an answer, on average")
    parser.add_argument("--waves", type=int, default=4, help="requests of a round, by how many are served at once")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantization")
    parser.add_argument("--counted", type=float, nargs=3, metavar=("STEP_US", "ROW_US", "TOKEN_NS"))
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--strangers", action="store_true", help="every round is of a tenant that has had no answer")
    parser.add_argument("--speculative-model")
    parser.add_argument("--wide", type=int, nargs=3, metavar=("HIDDEN", "LAYERS", "INTERMEDIATE"))
    parser.add_argument("--noise", type=float, help="with --wide: of the small model's weights; none: there is no such")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.wide:
            make_pair(args, Path(folder))
        return measure(args)


def make_pair(args: argparse.Namespace, folder: Path) -> None:
    small, args.model = args.model, folder / "wide"
    write_wide_model(small, args.model, WideShape(*args.wide))
    if args.noise is not None:
        write_noisy_model(small, folder / "noisy", args.noise)
        args.speculative_model = str(folder / "noisy")


def measure(args: argparse.Namespace) -> int:
    ends = json.loads((args.model / "generation_config.json").read_text())["eos_token_id"]
    args.end_token = ends[0] if isinstance(ends, list) else ends
    engines = {mode: make_engine(mode, args) for mode in MODES}
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    machine = this_machine()
    print(f"{machine.cpu}, {machine.num_cores} cores, load {machine.load_average:.1f}, {now()[:10]}, commit {commit()}")
    rows = []
    for kind in args.texts:
        for num in args.concurrency:
            rows.append(row(kind, num, engines, tokenizer, args))
            print(render(HEADER, rows[-1:]).splitlines()[-1], flush=True)
    print(render(HEADER, rows))
    return int(args.dtype == "float32" and any(cells[-1] != "yes" for cells in rows))


if __name__ == "__main__":
    sys.exit(main())
