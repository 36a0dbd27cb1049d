"""The tenant-interference matrix: one tenant does its worst of X, what does another feel?

    python -m bench.run.tenants.interference                                # the 100m model, all cells, some 20 minutes
    python -m bench.run.tenants.interference --cells flex drafts --rounds 5 --json matrix.json
    python -m bench.run.tenants.interference --model demo --seconds 2 --rounds 1

Alice streams completions, one after the other, each with a prompt of its own; in the first --batch-rounds rounds a
small batch of hers is timed afterwards. Bob does X (`bench/lib/load/bad_neighbour.py`), from a process of its own, or
nothing.
Alice begins when the server has rested, so that its memory is backed.
Both arms of a cell take turns, the first arm changing from round to round, on one server. A figure is of all rounds'
gaps together; the interval is of 90 %, over rounds drawn again with replacement. Bob's client runs on the server's
cores, but stands back in short turns, so that the figures are of what the server does for him; his answers per second
(and refusals) say how hard he was at it. In the cell "nothing" both arms are calm: its interval is what the machine
does by itself. In the cell "uploads" the calm arm has the same client, too, that sends its bytes at the server's rate
to a process which throws them away (`bench/lib/load/sink.py`): what the machine feels of copying them is no work of the
server's. The cell "sending" is that against nothing. With more --streams than one, Alice's prompts are in her own gaps,
as often as the streams fall out of step. Alice's client looks seldom and takes its times from the kernel
(`bench/lib/load/patient_reader.py`), so this must run on Linux and with CAP_NET_RAW.

Acceptance: no X moves the ITL p99 by more than 10 % nor the TTFT p99 by more than 2 x. Exit status 1 if one does.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import random
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import openai

from bench.lib import contestants, results
from bench.lib.load.bad_neighbour import ATTACKS, Answers, Neighbour
from bench.lib.load.patient_reader import PatientReader, is_possible
from bench.lib.load.sink import Sink
from bench.lib.load.workload import fitted_workload
from bench.lib.server.offline_batch import SharedDocuments
from bench.lib.server.server_process import ServerProcess
from bench.lib.table import render
from bench.run.tenants.two_tenants import Tenant

ALICE, BOB = "key-of-alice", "key-of-bob"
NOTHING = "nothing"
SENDING = "sending"
CONTROLS = {"uploads": SENDING}  # of the other cells: nothing
NUM_DRAWS = 1000
SETTLE_SECONDS = 2.0  # for what the neighbour does to spread, and for what it left to end
UPLOAD_BYTES_PER_SECOND = 8.0 * 2**20  # that the gateway takes of one tenant
REST_SECONDS = 20.0  # in which an idle server has the system back its memory, once
MAX_ITL_RATIO, MAX_TTFT_RATIO = 1.1, 2.0


@dataclass(slots=True)
class Arm:
    """Of one round, or of several together."""

    ttft_ms: list[float] = field(default_factory=list)
    itl_ms: list[float] = field(default_factory=list)
    batch_seconds: list[float] = field(default_factory=list)
    answers: Answers = field(default_factory=Answers)  # of Bob

    def add(self, other: Arm) -> None:
        self.ttft_ms += other.ttft_ms
        self.itl_ms += other.itl_ms
        self.batch_seconds += other.batch_seconds
        self.answers += other.answers

    @property
    def p99s(self) -> tuple[float, float]:
        return percentile(self.ttft_ms), percentile(self.itl_ms)


CELLS = [NOTHING, *ATTACKS, SENDING]


def percentile(values: list[float]) -> float:
    return float(np.percentile(values, 99)) if values else float("nan")


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def per_second(number: int, seconds: float) -> str:
    return f"{number / seconds:.0f}" if seconds else "-"


@dataclass(slots=True)
class Cell:
    name: str  # of ATTACKS, or NOTHING
    calm: list[Arm] = field(default_factory=list)  # by round
    beside: list[Arm] = field(default_factory=list)

    def row(self) -> list[str]:
        calm, beside = together(self.calm), together(self.beside)
        (calm_ttft, calm_itl), (ttft, itl) = calm.p99s, beside.p99s
        batch_calm, batch = median(calm.batch_seconds), median(beside.batch_seconds)
        rate = functools.partial(per_second, seconds=beside.answers.seconds)
        is_ok = itl <= MAX_ITL_RATIO * calm_itl and ttft <= MAX_TTFT_RATIO * calm_ttft
        return [
            self.name,
            f"{calm_ttft:.0f} -> {ttft:.0f}",
            self._ratio(0),
            f"{calm_itl:.2f} -> {itl:.2f}",
            self._ratio(1),
            f"{batch_calm:.2f} -> {batch:.2f}",
            f"{batch / batch_calm:.2f}",
            f"{rate(beside.answers.num_served)} ({rate(beside.answers.num_refused)})",
            "holds" if is_ok else "EXCEEDED",
        ]

    def _ratio(self, which: int) -> str:
        ratio = together(self.beside).p99s[which] / together(self.calm).p99s[which]
        rounds, rng = list(zip(self.calm, self.beside, strict=True)), random.Random(0)
        drawn = []
        for _ in range(NUM_DRAWS):
            calm, beside = zip(*rng.choices(rounds, k=len(rounds)), strict=True)
            drawn.append(together(beside).p99s[which] / together(calm).p99s[which])
        low, high = np.percentile(drawn, (5, 95))
        return f"{ratio:.2f} ({low:.2f}-{high:.2f})"


HEADER = ("X", "TTFT p99 (ms)", "ratio", "ITL p99 (ms)", "ratio", "batch (s)", "ratio", "Bob's answers/s", "")


def together(arms: Iterable[Arm]) -> Arm:
    whole = Arm()
    for arm in arms:
        whole.add(arm)
    return whole


class Matrix:
    def __init__(self, server: ServerProcess, sink: Sink, vocab_size: int, args: argparse.Namespace) -> None:
        self._server, self._sink, self._vocab_size, self._args = server, sink, vocab_size, args
        self._random = random.Random(0)
        self._seeds = itertools.count(1)

    async def measure(self, cell: Cell) -> None:
        for i in range(self._args.rounds):
            for is_beside in (False, True) if i % 2 == 0 else (True, False):
                has_batch = i < self._args.batch_rounds
                (cell.beside if is_beside else cell.calm).append(await self._arm(cell.name, is_beside, has_batch))
        print(" | ".join(cell.row()), file=sys.stderr, flush=True)

    async def _arm(self, cell: str, is_beside: bool, has_batch: bool) -> Arm:
        name = cell if is_beside else CONTROLS.get(cell, NOTHING)
        if name == NOTHING:  # with the other arm's rests
            await asyncio.sleep(SETTLE_SECONDS)
            arm = await self.alice(has_batch)
            await asyncio.sleep(SETTLE_SECONDS)
            return arm
        attack, url = ("uploads", self._sink.base_url) if name == SENDING else (name, self._server.base_url)
        with Neighbour(attack, url, BOB, self._vocab_size) as bob:
            await asyncio.sleep(SETTLE_SECONDS)
            before = bob.answers()
            arm = await self.alice(has_batch)
            arm.answers = bob.answers() - before
        await asyncio.sleep(SETTLE_SECONDS)
        return arm

    async def alice(self, has_batch: bool = True) -> Arm:
        arm = Arm()
        ends_at = time.perf_counter() + self._args.seconds
        await asyncio.gather(*(self._reader(arm, ends_at) for _ in range(self._args.streams)))
        if not has_batch:
            return arm
        async with openai.AsyncOpenAI(base_url=f"{self._server.base_url}/v1", api_key=ALICE) as client:
            tenant = Tenant(client, (await client.models.list()).data[0].id)
            rows = SharedDocuments(
                self._args.batch_rows, 1000, 1, 31, self._args.output_len, self._vocab_size, next(self._seeds)
            )
            arm.batch_seconds.append(await tenant.seconds_of(await tenant.upload(rows)))
        return arm

    async def _reader(self, arm: Arm, ends_at: float) -> None:
        while time.perf_counter() < ends_at:
            stream = PatientReader(self._server.base_url, {"Authorization": f"Bearer {ALICE}"})
            body = {
                "prompt": self._random.choices(range(10, self._vocab_size), k=self._args.prompt_len),
                "max_tokens": self._args.output_len,
                "ignore_eos": True,
                "stream": True,
            }
            start, response = await stream.request("POST", "/v1/completions", json.dumps(body).encode())
            stream.close()
            if response.status != 200:
                raise RuntimeError(f"alice is refused: {response.status} {response.body()!r}")
            times = [moment for moment, event in response.events() if b'"text":' in event]
            arm.ttft_ms.append(1e3 * (times[0] - start))
            arm.itl_ms += [1e3 * (later - earlier) for earlier, later in itertools.pairwise(times)]


async def measure(server: ServerProcess, sink: Sink, vocab_size: int, args: argparse.Namespace) -> list[Cell]:
    matrix = Matrix(server, sink, vocab_size, args)
    await matrix.alice()  # everything has run once
    await asyncio.sleep(REST_SECONDS)
    cells = [Cell(name) for name in args.cells]
    for cell in cells:
        await matrix.measure(cell)
    return cells


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="100m", help="demo, 15m, 100m or a checkpoint's folder")
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=CELLS, metavar="X")
    parser.add_argument("--rounds", type=int, default=6, help="of each cell: both arms")
    parser.add_argument("--batch-rounds", type=int, default=2, help="in which a batch is timed, too")
    parser.add_argument("--seconds", type=float, default=6.0, help="of an arm's streams")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--prompt-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--batch-rows", type=int, default=20)
    parser.add_argument("--json", type=Path, help="file for all samples")
    parser.add_argument("--server-command", default=contestants.OUR_COMMAND)
    return parser.parse_args()


def main() -> None:
    contestants.prepare_process()
    args = parse_arguments()
    if not is_possible():
        sys.exit("the packets' times of arrival cannot be read: run this on Linux, as root or with CAP_NET_RAW")
    contestants.RESULTS.mkdir(parents=True, exist_ok=True)
    folder = contestants.model_folder(args.model)
    vocab_size = fitted_workload(folder, 64, 64).vocab_size
    data = Path(tempfile.mkdtemp(prefix="hocket-interference-"))
    command = f"HOCKET_API_KEY={ALICE},{BOB} {args.server_command} --no-access-log --data-dir {data}/store"
    try:
        log = contestants.RESULTS / "interference.log"
        with (
            ServerProcess("interference", command, shlex.quote(str(folder)), log) as server,
            Sink(UPLOAD_BYTES_PER_SECOND) as sink,
        ):
            cells = asyncio.run(measure(server, sink, vocab_size, args))
    finally:
        shutil.rmtree(data, ignore_errors=True)
    machine = results.this_machine()
    rows = [cell.row() for cell in cells]
    print(f"{machine.cpu}, {machine.num_cores} cores, commit {results.commit()}; {args.model}, {args.rounds} rounds\n")
    print(render(HEADER, rows))
    if args.json:
        args.json.write_text(json.dumps([asdict(cell) for cell in cells]))
    sys.exit(any(row[-1] != "holds" for row in rows))


if __name__ == "__main__":
    main()
