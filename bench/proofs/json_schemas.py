"""A thousand real JSON schemas against whole servers: what is finished validates, what cannot be followed says why.

    make test-json-schemas                       # clones JSONSchemaBench once; ARGS="--data DIR" where that cannot be
    python -m bench.proofs.json_schemas [--data DIR] [--per-category 100] [--models demo random-15m] [--json FILE]

The cut: of each of JSONSchemaBench's ten categories 100 schemas, drawn once and for all. Each is asked for once per
model, by chat, at temperature 1, with a liking for what closes, so that a model that knows nothing comes to an end
(--bias). An answer that ends by itself has to validate with `jsonschema`, its formats too; a schema that cannot be
followed has to get 400 in OpenAI's shape and name the keyword. Nothing else may happen: the exit status says so.

Compiling is timed in this process, by the thread's CPU clock: the gateway's check, and what the engine does before the
first token: compile, and find the first mask, with the model's own vocabulary.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from bench.lib.json_schemas.corpus import CollectedSchema, NoCorpusError, cut, find_corpus
from bench.lib.json_schemas.verdicts import Judged, Verdict, judge
from bench.lib.model.random_model import SHAPES, ensure_checkpoint
from bench.lib.server.server_process import ServerProcess
from bench.lib.table import render
from schedcore.api.model_path import resolve_model
from schedcore.api.types import EngineRequest, Grammar, GrammarKind
from schedcore.grammar.source import find_problem
from worker.grammars.grammars import Grammars

COMMAND = f"{sys.executable} -m gateway.cli.main serve {{model}} --port {{port}} --no-access-log"
ANY_OBJECT = '{"type":"object"}'
CLOSING = frozenset('"}]')
NUM_AT_ONCE = 8


def closing_tokens(folder: Path) -> list[int]:
    """Tokens of nothing but quotes and closing brackets, and those that end a text."""
    vocab: dict[str, int] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    ends = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    closing = [number for token, number in vocab.items() if token and CLOSING.issuperset(token)]
    return closing + (ends if isinstance(ends, list) else [ends])


async def ask_all(url: str, schemas: list[CollectedSchema], asked: dict[str, Any]) -> list[Judged]:
    turns = asyncio.Semaphore(NUM_AT_ONCE)
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:

        async def one(seed: int, found: CollectedSchema) -> Judged:
            form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": found.schema}}
            async with turns:
                body = asked | {"response_format": form, "seed": seed}
                response = await client.post("/v1/chat/completions", json=body)
            try:
                return judge(found.schema, response.status_code, response.json())
            except ValueError:
                return judge(found.schema, response.status_code, None)

        return list(await asyncio.gather(*(one(seed, found) for seed, found in enumerate(schemas))))


def compile_ms(schemas: list[CollectedSchema], folder: Path) -> list[float]:
    """CPU time of each that can be followed, from its text to its first mask."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    grammars = Grammars(folder, config["vocab_size"])
    times = []
    for number, text in enumerate([ANY_OBJECT, *(json.dumps(found.schema) for found in schemas)]):
        grammar = Grammar(GrammarKind.JSON_SCHEMA, text)
        begin = time.thread_time()
        if find_problem(grammar) is None:
            grammars.compile(EngineRequest(number, [1], 1, stop_token_ids=[2], grammar=grammar))
            times.append(1e3 * (time.thread_time() - begin))
    return times[1:]  # the first reads the vocabulary


def by_category(schemas: list[CollectedSchema], judged: list[Judged]) -> str:
    counts = Counter((found.category, result.verdict) for found, result in zip(schemas, judged, strict=True))
    categories = sorted({found.category for found in schemas})
    rows = [[name, *(str(counts[name, verdict]) for verdict in Verdict)] for name in categories]
    rows.append(["all", *(str(sum(result.verdict == verdict for result in judged)) for verdict in Verdict)])
    return render(["category", *(verdict.value for verdict in Verdict)], rows)


def refusals(judged: list[Judged]) -> str:
    reasons = Counter(result.why for result in judged if result.verdict == Verdict.REFUSED)
    return render(["refused for", "schemas"], [[reason, str(number)] for reason, number in reasons.most_common()])


def prove(folder: Path, schemas: list[CollectedSchema], args: argparse.Namespace) -> list[Judged]:
    asked = {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": args.max_tokens,
        "temperature": 1.0,
        "logit_bias": {str(token): args.bias for token in closing_tokens(folder)},
    }
    with tempfile.TemporaryDirectory() as scratch:
        command = f"{COMMAND} --data-dir {scratch}/data"
        with ServerProcess(folder.name, command, str(folder), Path(scratch) / "server.log") as server:
            judged = asyncio.run(ask_all(server.base_url, schemas, asked))
    print(f"\n{folder.name}, at most {args.max_tokens} tokens\n\n{by_category(schemas, judged)}\n\n{refusals(judged)}")
    times = compile_ms(schemas, folder)
    p50, p90, p99 = (float(np.percentile(times, percent)) for percent in (50, 90, 99))
    print(f"\nfrom text to first mask, CPU ms: p50 {p50:.1f}, p90 {p90:.1f}, p99 {p99:.1f}, largest {max(times):.0f}")
    for found, result in zip(schemas, judged, strict=True):
        if result.verdict in (Verdict.WRONG, Verdict.BROKEN):
            print(f"\n{result.verdict.value}: {found.category}/{found.name}: {result.why}")
    return judged


def model_folder(name: str, models: Path) -> Path:
    shape = name.removeprefix("random-")
    return ensure_checkpoint(shape, models) if shape in SHAPES else resolve_model(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a checkout of JSONSchemaBench, or its folder data")
    parser.add_argument("--per-category", type=int, default=100, help="schemas of each; 0: all")
    parser.add_argument("--models", nargs="+", default=["demo", "random-15m"], help="checkpoints, or random-SHAPE")
    parser.add_argument("--models-folder", type=Path, default=Path("models"), help="where random models are")
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--bias", type=float, default=7.0, help="on tokens that close")
    parser.add_argument("--json", type=Path, help="every verdict, as a file")
    args = parser.parse_args()
    try:
        schemas = cut(find_corpus(args.data), args.per_category)
    except NoCorpusError as error:
        parser.error(str(error))
    print(f"{len(schemas)} schemas of {len({found.category for found in schemas})} categories")
    results = {name: prove(model_folder(name, args.models_folder), schemas, args) for name in args.models}
    if args.json:
        names = [f"{found.category}/{found.name}" for found in schemas]
        verdicts = {
            model: {name: asdict(result) for name, result in zip(names, judged, strict=True)}
            for model, judged in results.items()
        }
        args.json.write_text(json.dumps(verdicts, indent=1))
    return int(any(r.verdict in (Verdict.WRONG, Verdict.BROKEN) for judged in results.values() for r in judged))


if __name__ == "__main__":
    sys.exit(main())
