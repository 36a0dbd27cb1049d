"""What a grammar costs per decode step, in the engine itself, without gateway or sockets.

    python -m bench.run.grammars.steps [--models demo random-15m] [--batch 8 32] [--tokens 200] [--rounds 5]
        [--form schema]

One engine, in turns: a batch without a grammar, and the same batch with a JSON schema whose answers are never over
within --tokens tokens, so that both have the same lengths. Per step that decodes, the least of the rounds, as others
who use the machine only make steps slower: CPU time of the engine's thread, which stands in a step's way, CPU time
of all threads of the process, and wall time, which means something on a quiet machine only. Compiling and prefill are
not in it.

`--form text` takes a grammar that lets any text through instead, as a schema does what a trained model says.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from dataclasses import dataclass
from pathlib import Path

from bench.lib.json_schemas.long_answer import LONG_ANSWER
from bench.lib.model.random_model import SHAPES, ensure_checkpoint
from bench.lib.table import render
from schedcore.api.config import EngineConfig
from schedcore.api.model_path import resolve_model
from schedcore.api.types import EngineRequest, Grammar, GrammarKind, SamplingParams
from worker import ops
from worker.process.engine import Engine
from worker.process.engine_process import build_engine

GATEWAY = b"bench"
PROMPT = list(range(6, 38))
GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(LONG_ANSWER))
FORMS = {"schema": GRAMMAR, "text": Grammar(GrammarKind.LARK, 'start: TEXT "\\u0000"\nTEXT: /[^\\x00]*/')}


@dataclass(frozen=True, slots=True)
class StepCost:
    """Microseconds per decode step."""

    thread: float
    process: float
    wall: float


class Turns:
    """Batches on one engine, one after the other."""

    def __init__(self, folder: Path, max_num_seqs: int, num_tokens: int, threads: int) -> None:
        config = EngineConfig(
            model=str(folder),
            device="cpu",
            num_threads=threads,
            max_num_seqs=max_num_seqs,
            max_model_len=len(PROMPT) + num_tokens + 16,
            enable_prefix_caching=False,
        )
        self._engine: Engine = build_engine(config, time.monotonic())[0]
        self._num_tokens = num_tokens
        self._last_id = 0

    def run(self, batch: int, temperature: float, grammar: Grammar | None) -> StepCost:
        engine = self._engine
        for _ in range(batch):
            self._last_id += 1
            sampling = SamplingParams(temperature=temperature, seed=self._last_id)
            stop = [] if grammar is None else [5]
            request = EngineRequest(
                self._last_id, PROMPT, self._num_tokens, sampling, stop_token_ids=stop, grammar=grammar
            )
            engine.add(GATEWAY, request)
        wanted = engine.stats().num_prompt_tokens + batch * len(PROMPT)
        while engine.stats().num_prompt_tokens < wanted:
            engine.step()
        engine.take_deltas()
        begin = time.thread_time(), time.process_time(), time.perf_counter(), engine.stats().num_steps
        while engine.has_work():
            engine.step()
            engine.take_deltas()
        end = time.thread_time(), time.process_time(), time.perf_counter(), engine.stats().num_steps
        thread, process, wall = (1e6 * (end[i] - begin[i]) / (end[3] - begin[3]) for i in range(3))
        return StepCost(thread, process, wall)


def least(costs: list[StepCost]) -> StepCost:
    return StepCost(*(min(getattr(c, name) for c in costs) for name in ("thread", "process", "wall")))


def measure(folder: Path, args: argparse.Namespace) -> list[list[str]]:
    turns = Turns(folder, max(args.batch), args.tokens, args.threads)
    gc.collect()
    gc.freeze()  # as in an engine
    rows = []
    for batch in args.batch:
        for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            form = FORMS[args.form]
            turns.run(batch, temperature, form)
            rounds = [[turns.run(batch, temperature, g) for g in (None, form)] for _ in range(args.rounds)]
            plain, formed = (least([costs[i] for costs in rounds]) for i in range(2))
            cells = [f"{getattr(c, n):.0f}" for n in ("thread", "process", "wall") for c in (plain, formed)]
            rows.append([f"{folder.name} x {batch}, {name}", *cells, f"{plain.thread / formed.thread:.2f}"])
            print(" ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["demo", "random-15m"], help="checkpoints, or random-SHAPE")
    parser.add_argument("--models-folder", type=Path, default=Path("models"), help="where random models are")
    parser.add_argument("--batch", nargs="+", type=int, default=[8, 32], help="requests that decode together")
    parser.add_argument("--tokens", type=int, default=200, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--form", choices=FORMS, default="schema")
    parser.add_argument("--threads", type=int, default=ops.DEFAULT_THREADS)
    args = parser.parse_args()
    rows = []
    for name in args.models:
        shape = name.removeprefix("random-")
        folder = ensure_checkpoint(shape, args.models_folder) if shape in SHAPES else resolve_model(name)
        rows += measure(folder, args)
    header = ["us per step", "thread", "+ schema", "process", "+ schema", "wall", "+ schema", "ratio by thread"]
    print("\n" + render(header, rows))


if __name__ == "__main__":
    main()
