"""A small batch of one tenant beside a huge one of another: how much longer it takes than alone.

    python -m bench.run.tenants.two_tenants                      # the 15m model, 50,000 rows and 50, some three minutes
    python -m bench.run.tenants.two_tenants --model demo --rows 5000 --arrivals 2

The small batch runs --arrivals times on an idle server, then as often beside the huge one, which has the engine to
itself for --lead seconds before each. Seconds are those from the batch's creation until its status says completed; the
file is uploaded before. Every row has a prompt of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import openai

from bench.lib import contestants, results
from bench.lib.load.workload import fitted_workload
from bench.lib.server.offline_batch import SharedDocuments
from bench.lib.server.server_process import ServerProcess
from bench.lib.table import render

KEYS = ("key-of-much", "key-of-little")
POLL_SECONDS = 0.05
PATIENCE_SECONDS = 300.0
TARGET = 2.0  # times alone


@dataclass(frozen=True, slots=True)
class Tenant:
    client: openai.AsyncOpenAI
    model: str

    async def upload(self, rows: SharedDocuments) -> str:
        content = io.BytesIO(b"\n".join(rows.lines(self.model)))
        return (await self.client.files.create(file=("rows.jsonl", content), purpose="batch")).id

    async def begin(self, file_id: str) -> str:
        batch = await self.client.batches.create(
            input_file_id=file_id, endpoint="/v1/completions", completion_window="24h"
        )
        return batch.id

    async def until(self, batch_id: str, *statuses: str) -> openai.types.Batch:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (batch := await self.client.batches.retrieve(batch_id)).status not in statuses:
            if time.monotonic() > deadline:
                raise TimeoutError(f"batch {batch_id} is {batch.status} after {PATIENCE_SECONDS:g} s")
            await asyncio.sleep(POLL_SECONDS)
        return batch

    async def seconds_of(self, file_id: str) -> float:
        """That a batch takes."""
        start = time.perf_counter()
        batch = await self.until(await self.begin(file_id), "completed", "failed", "expired", "cancelled")
        seconds = time.perf_counter() - start
        counts = batch.request_counts
        assert counts is not None
        if batch.status != "completed" or counts.failed:
            raise RuntimeError(f"batch {batch.id} is {batch.status}, {counts.failed} rows failed")
        return seconds


@dataclass(frozen=True, slots=True)
class Result:
    alone: list[float]  # seconds
    beside: list[float]
    rows_per_second: float  # of the huge batch while the small ones ran beside it

    @property
    def ratio(self) -> float:
        return max(self.beside) / statistics.median(self.alone)


async def measure(server: ServerProcess, vocab_size: int, args: argparse.Namespace) -> Result:
    def rows(num: int, seed: int) -> SharedDocuments:
        # Documents of a token: nothing is shared.
        return SharedDocuments(num, args.vocabulary, 1, args.length[0] - 1, args.length[1], vocab_size, seed)

    base_url = f"{server.base_url}/v1"
    async with (
        openai.AsyncOpenAI(base_url=base_url, api_key=KEYS[0]) as a,
        openai.AsyncOpenAI(base_url=base_url, api_key=KEYS[1]) as b,
    ):
        model = (await a.models.list()).data[0].id
        much, little = Tenant(a, model), Tenant(b, model)
        files = [await little.upload(rows(args.small_rows, 1 + i)) for i in range(2 * args.arrivals + 1)]
        await little.seconds_of(files.pop())  # everything has run once
        alone = [await little.seconds_of(files.pop()) for _ in range(args.arrivals)]
        huge = await much.begin(await much.upload(rows(args.rows, 0)))
        begun = await much.until(huge, "in_progress")
        beside, start = [], time.perf_counter()
        for _ in range(args.arrivals):
            await asyncio.sleep(args.lead)
            beside.append(await little.seconds_of(files.pop()))
            print(f"beside: {beside[-1]:.2f} s", file=sys.stderr)
        seconds = time.perf_counter() - start
        ended = await a.batches.retrieve(huge)
        if ended.status != "in_progress":
            raise RuntimeError(f"the huge batch is {ended.status}: give it more --rows")
        await a.batches.cancel(huge)
    assert begun.request_counts is not None
    assert ended.request_counts is not None
    return Result(alone, beside, (ended.request_counts.completed - begun.request_counts.completed) / seconds)


def describe(result: Result, args: argparse.Namespace) -> str:
    def cell(seconds: Sequence[float]) -> str:
        return ", ".join(f"{s:.2f}" for s in seconds)

    num_in, num_out = args.length
    machine = results.this_machine()
    lines = [
        f"{machine.cpu}, {machine.num_cores} cores, commit {results.commit()}; {args.model}, {args.small_rows} rows "
        f"beside {args.rows}, {num_in} tokens in, {num_out} out",
        "",
        render(
            ("", f"seconds of {args.small_rows} rows"), [["alone", cell(result.alone)], ["beside", cell(result.beside)]]
        ),
        "",
        f"worst beside over median alone: {result.ratio:.2f} (target at most {TARGET:g}); the huge batch advanced by "
        f"{result.rows_per_second:.1f} rows/s",
    ]
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="15m", help="demo, 15m, 100m, 0.5b or a checkpoint's folder")
    parser.add_argument("--rows", type=int, default=50_000, help="of the huge batch")
    parser.add_argument("--small-rows", type=int, default=50)
    parser.add_argument("--arrivals", type=int, default=4)
    parser.add_argument("--lead", type=float, default=5.0, help="seconds before each arrival")
    parser.add_argument("--length", type=int, nargs=2, default=[128, 128], metavar=("IN", "OUT"))
    parser.add_argument("--vocabulary", type=int, default=1000, help="first tokens")
    parser.add_argument("--server-command", default=contestants.OUR_COMMAND)
    return parser.parse_args()


def main() -> None:
    contestants.prepare_process()
    args = parse_arguments()
    contestants.RESULTS.mkdir(parents=True, exist_ok=True)
    folder = contestants.model_folder(args.model)
    vocab_size = fitted_workload(folder, *args.length).vocab_size
    data = Path(tempfile.mkdtemp(prefix="hocket-tenants-"))
    command = f"HOCKET_API_KEY={','.join(KEYS)} {args.server_command} --no-access-log --data-dir {data}"
    try:
        with ServerProcess("tenants", command, shlex.quote(str(folder)), contestants.RESULTS / "tenants.log") as server:
            result = asyncio.run(measure(server, vocab_size, args))
    finally:
        shutil.rmtree(data, ignore_errors=True)
    print(describe(result, args))


if __name__ == "__main__":
    main()
