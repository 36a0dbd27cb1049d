"""A batch whose rows share documents, over nodes: which share of its prompt tokens is found in caches.

    python -m bench.run.gateway.offline_nodes                       # windows per node, by the router, one node
    python -m bench.run.gateway.offline_nodes --kind windows --ttft # and what online requests see beside it

Real processes with the demo model. Rows are in random order. Tokens are counted, so a busy machine will do for them;
seconds and TTFT are of a quiet one only. `routed`: the gateway leaves its rows to the router, as it did before it had
windows. TTFT is that of one client that asks every 50 ms, alone before the batch and beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import openai

from bench.lib.table import render

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from fakes import real_fleet  # noqa: E402
from fakes.batch_client import POLL_SECONDS, results, row, submit  # noqa: E402

KINDS = ("windows", "routed", "one")
HEADER = ("rows go by", "found in caches", "prompt tokens", "rows per node", "seconds", "TTFT p99 alone", "beside", "x")
ROUTED = """
from gateway.offline.nodes.node_windows import NodeWindows
NodeWindows.look = lambda *_: False
from gateway.cli.main import main
main()
"""
TEXT = "the day was long and nobody knew why they had come here so early in that cold year of rain"
SECONDS = 3600.0
PAUSE_SECONDS = 0.05


def start_routed(log_file: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """As real_fleet.start(), of a gateway without windows."""
    if arguments[0] != "serve":
        return START(log_file, *arguments)
    with log_file.open("ab") as log:
        return subprocess.Popen([sys.executable, "-c", ROUTED, *arguments], stdout=log, stderr=log, cwd=ROOT)


START = real_fleet.start


def batch_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    draw = random.Random(0)
    documents = [" ".join(draw.choices(TEXT.split(), k=args.document_words)) for _ in range(args.documents)]
    fields = {"model": "demo", "max_tokens": args.output_len, "temperature": 0, "ignore_eos": True}
    prompts = [f"{documents[i % args.documents]} Question {i}: who was there?" for i in range(args.rows)]
    draw.shuffle(prompts)
    return [row(f"r{i}", {"prompt": prompt, **fields}) for i, prompt in enumerate(prompts)]


def ttft(client: openai.OpenAI) -> float:
    start = time.perf_counter()
    with client.completions.create(
        model="demo", prompt=f"Once {start}", max_tokens=4, temperature=0, stream=True
    ) as stream:
        next(iter(stream))
        return time.perf_counter() - start


def p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98] if len(seconds) > 1 else float("nan")


def measure(kind: str, args: argparse.Namespace, folder: Path) -> list[str]:
    num_seqs = args.max_num_seqs[:1] if kind == "one" else args.max_num_seqs
    starter = start_routed if kind == "routed" else START
    with patch.object(real_fleet, "start", starter), real_fleet.fleet(folder, None) as fleet:
        for i, number in enumerate(num_seqs):
            fleet.add(f"n{i}", "--max-num-seqs", str(number))
        for i in range(len(num_seqs)):
            fleet.wait_for(f"n{i}", "up")
        client = openai.OpenAI(base_url=f"{fleet.server.url}/v1", api_key="none", timeout=SECONDS, max_retries=0)
        alone: list[float] = []
        while args.ttft and len(alone) < args.ttft_requests:
            alone.append(ttft(client))
            time.sleep(PAUSE_SECONDS)
        beside: list[float] = []
        start = time.perf_counter()
        batch_id = submit(client, batch_rows(args))
        while (batch := client.batches.retrieve(batch_id)).status not in ("completed", "failed", "expired"):
            if args.ttft and batch.status == "in_progress":
                beside.append(ttft(client))
            time.sleep(POLL_SECONDS)
        seconds = time.perf_counter() - start
        usages = [line["response"]["body"]["usage"] for line in results(client, batch.output_file_id)]
        assert len(usages) == args.rows, batch
        num_tokens = sum(usage["prompt_tokens"] for usage in usages)
        num_cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        given = " ".join(str(node["num_given"]) for _, node in sorted(fleet.status().items()))
        times = [f"{1e3 * p99(alone):.0f} ms", f"{1e3 * p99(beside):.0f} ms", f"{p99(beside) / p99(alone):.2f}"]
        row_of = [kind, f"{num_cached / num_tokens:.4f}", str(num_tokens), given, f"{seconds:.1f}"]
        return row_of + (times if args.ttft else ["", "", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--documents", type=int, default=30)
    parser.add_argument("--document-words", type=int, default=300)
    parser.add_argument("--output-len", type=int, default=16)
    parser.add_argument("--max-num-seqs", type=int, nargs="+", default=[16, 16, 16], help="of each node")
    parser.add_argument("--ttft", action="store_true", help="ask online beside it")
    parser.add_argument("--ttft-requests", type=int, default=200, help="alone, before the batch")
    parser.add_argument("--json", type=Path, help="write the table there, too")
    args = parser.parse_args()
    rows = []
    for kind in args.kind:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(kind, args, Path(folder)))
        print(render(HEADER, rows[-1:]), flush=True)
    print()
    print(render(HEADER, rows))
    if args.json:
        args.json.write_text(json.dumps([dict(zip(HEADER, found, strict=True)) for found in rows], indent=1))


if __name__ == "__main__":
    main()
