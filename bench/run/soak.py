"""A soak: everything at once, for long, with kills; nothing may be lost, and nothing may grow.

    python -m bench.run.soak --minutes 60 [--model demo] [--seed 1] [--json FILE] [--keep DIR]

Three tenants chat, hang up, announce, draft, forget, upload, and run batches that complete, are cancelled or expire, on
a server with a host and a disk tier. In the first part the engine and the gateway are killed (kill -9), and the gateway
asked to end; then, after a warm-up, nothing is disturbed any more, and slopes are taken of memory, descriptors,
threads, disk, log and number of metrics (bench/lib/soak/watch.py states the limits). The server runs in asyncio's debug
mode; a line in its log about a forgotten task or exception fails the soak. In the end all batches have ended with every
row exactly once, all gauges are zero, and the server ends with status 0.

Exit status: 0 all of that holds, 1 something does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import psutil

from bench.lib.soak.batches import Batches, unfinished
from bench.lib.soak.client import SoakClient
from bench.lib.soak.ledger import Ledger
from bench.lib.soak.people import NUM_SESSIONS, People, forget
from bench.lib.soak.server import KEYS, SoakFailedError, SoakServer
from bench.lib.soak.watch import MIB, MIN_SAMPLES, Growth, Sample, folder_bytes, forgotten, growths, restless, take
from bench.lib.table import render

DISTURBED = 0.45  # of the time: until then things are killed
WARM = 0.55  # from then on slopes are taken
NUM_SAMPLES = 240  # at most, over the whole soak
MIN_SAMPLE_SECONDS = 2.0
CALM_SECONDS = 4.0  # between two disturbances, at least
REST_SECONDS = 120.0  # generous: for gauges to become zero
MAX_TIER_BYTES = 80 * MIB  # --disk-cache-bytes and segments that are being replaced
KILLS = ("kill engine", "kill gateway", "end gateway", "stop engine", "kill both", "kill engine")


class Soak:
    def __init__(self, server: SoakServer, minutes: float, model: str, seed: int) -> None:
        self.ledger = Ledger()
        self.samples: list[tuple[int, int, Sample]] = []  # with the processes that they are of
        self._server = server
        self._seconds = minutes * 60
        self._model = model
        self._rng = random.Random(seed)
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Raises SoakFailedError where going on makes no sense."""
        await self._server.start()
        self._start = time.monotonic()
        self._clients = [SoakClient(self._server.url, key) for key in KEYS]
        try:
            helpers = [asyncio.create_task(act) for act in (self._watch(), self._tell())]
            async with asyncio.TaskGroup() as group:
                load = [group.create_task(_whole(act)) for act in self._load()]
                await self._disturb()
                await asyncio.sleep(self._start + self._seconds - time.monotonic())
                self._stop.set()
                del load
            for helper in helpers:
                helper.cancel()
            await self._come_to_rest()
        finally:
            for client in self._clients:
                await client.close()
        if status := await self._server.end(signal.SIGTERM):
            self.ledger.fail(f"the server ended with {status}")

    def _load(self) -> Iterator[Awaitable[None]]:
        for client in self._clients:
            rng = random.Random(self._rng.random())
            yield from People(client, self._model, self.ledger, self._stop, rng).all()
            for _ in range(2):
                yield Batches(client, self._model, self.ledger, self._stop, random.Random(rng.random())).run()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    async def _disturb(self) -> None:
        """One kill after the other, evenly over the first part."""
        num_kills = max(len(KILLS), round(self._seconds / 240))
        for i in range(num_kills):
            due = (i + 0.5) / num_kills * DISTURBED * self._seconds
            await asyncio.sleep(max(CALM_SECONDS, due - self.elapsed))
            if self.elapsed > DISTURBED * self._seconds and i >= 3:
                return
            await self._kill(KILLS[i % len(KILLS)])

    async def _kill(self, what: str) -> None:
        self.ledger.count(what)
        self.ledger.trouble.begin()
        server, engine = self._server, self._server.engine()
        before = engine.pid if engine is not None else None
        match what:
            case "kill engine":
                server.signal_engine(signal.SIGKILL)
                await server.until_another_engine(before)
            case "stop engine":
                server.signal_engine(signal.SIGSTOP)
                await server.until_another_engine(before)
            case "end gateway":
                if status := await server.end(signal.SIGTERM):
                    self.ledger.fail(f"the gateway ended with {status} after SIGTERM")
                await server.start()
            case _:
                if what == "kill both":
                    server.signal_engine(signal.SIGKILL)
                await server.end(signal.SIGKILL)
                await server.start()
        await asyncio.sleep(1.0)  # what was cut off has been told to everybody
        self.ledger.trouble.end()

    async def _watch(self) -> None:
        pause = max(MIN_SAMPLE_SECONDS, self._seconds / NUM_SAMPLES)
        while True:
            with contextlib.suppress(psutil.Error, OSError):
                gateway, engine = self._server.gateway, self._server.engine()
                if engine is not None and not self.ledger.trouble.is_now:
                    metrics = await self._server.metrics()
                    sample = take(self.elapsed, gateway, engine, self._server.data, self._server.log, metrics)
                    self.samples.append((gateway.pid, engine.pid, sample))
                    if (size := folder_bytes(self._server.tier)) > MAX_TIER_BYTES:
                        self.ledger.fail(f"the disk tier takes {size / MIB:.0f} MiB")
            await asyncio.sleep(pause)

    async def _tell(self) -> None:
        """A line per minute."""
        for minute in range(1, 10**6):
            await asyncio.sleep(max(0.0, minute * 60 - self.elapsed))
            counts = self.ledger.counts
            last = self.samples[-1][2] if self.samples else None
            taken = (
                f"gateway {last.gateway_rss / MIB:.0f} MiB, engine {last.engine_rss / MIB:.0f} MiB, "
                f"{last.gateway_descriptors} descriptors"
                if last
                else "no sample yet"
            )
            batches = sum(counts[f"batch {status}"] for status in ("completed", "cancelled", "expired"))
            print(
                f"{minute:4d}/{self._seconds / 60:g} min: {counts['chat ok']} chats, {counts['abort ok']} hung up, "
                f"{counts['advisory ok']} advisories, {batches} batches, {self._server.num_starts} starts; {taken}; "
                f"{self.ledger.num_failures} failures",
                flush=True,
            )

    async def _come_to_rest(self) -> None:
        for client in self._clients:
            for session in range(NUM_SESSIONS * 2):
                await forget(client, session)
            for batch in await self._rest_of(client):
                self.ledger.fail(f"batch {batch} in the end")
        deadline = time.monotonic() + REST_SECONDS
        while unrest := restless(await self._server.metrics()):
            if time.monotonic() > deadline:
                self.ledger.fail(f"after {REST_SECONDS:g} s of rest: {', '.join(unrest)}")
                return
            await asyncio.sleep(1.0)
            # An idle engine tells nothing new: of sessions forgotten and leases that ended we hear behind a step.
            await self._clients[0].ask("POST", "/v1/completions", json={"model": self._model, "prompt": "Hello"})

    async def _rest_of(self, client: SoakClient) -> list[str]:
        """Batches that have not ended although there was time; some were created when the gateway was killed."""
        deadline = time.monotonic() + REST_SECONDS
        while True:
            found = await unfinished(client)
            if not found or time.monotonic() > deadline:
                return found
            await asyncio.sleep(1.0)

    def window(self) -> list[Sample]:
        """Samples of the processes that were there in the end, from the warm part on."""
        if not self.samples:
            return []
        processes = self.samples[-1][:2]
        return [s[2] for s in self.samples if s[:2] == processes and s[2].at >= WARM * self._seconds]


async def _whole(act: Awaitable[None]) -> None:
    await act


def judge(soak: Soak, log: Path) -> list[Growth]:
    """Adds to the ledger's failures what only shows in the end."""
    for line in forgotten(log.read_text(errors="replace"))[:10]:
        soak.ledger.fail(f"in the log: {line}")
    for what in ("chat ok", "abort ok", "advisory ok", "upload ok", "batch completed", "batch cancelled"):
        if not soak.ledger.counts[what]:
            soak.ledger.fail(f"nothing of this kind: {what}")
    window = soak.window()
    if len(window) < MIN_SAMPLES:
        soak.ledger.fail(f"only {len(window)} samples without disturbance: too short to say whether anything grows")
        return []
    found = growths(window)
    for growth in found:
        if growth.is_too_much:
            soak.ledger.fail(
                f"{growth.name} grows by {growth.growth:.0f} over the window, more than {growth.limit:.0f}"
            )
    return found


def tables(soak: Soak, found: Sequence[Growth]) -> str:
    done = render(("what", "times"), [(what, str(times)) for what, times in sorted(soak.ledger.counts.items())])
    rows = [
        (g.name, f"{g.first:.0f}", f"{g.last:.0f}", f"{g.slope_per_hour:.0f}", f"{g.growth:.0f}", f"{g.limit:.0f}")
        for g in found
    ]
    taken = render(("without disturbance", "first", "last", "per hour", "growth", "limit"), rows) if rows else ""
    return f"{done}\n\n{taken}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (default: 1); times differ all the same")
    parser.add_argument("--json", type=Path, metavar="FILE", help="counts, failures, growths and samples")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="where the server's data and log stay (default: nowhere)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hocket-soak-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        server = SoakServer(folder, options.model)
        soak = Soak(server, options.minutes, options.model, options.seed)
        try:
            asyncio.run(soak.run())
        except* SoakFailedError as errors:
            soak.ledger.fail(str(errors.exceptions[0]))
        finally:
            server.kill_what_is_left()
        found = judge(soak, server.log)
        if soak.ledger.num_failures:
            print("the log's end:", *server.log.read_text(errors="replace").splitlines()[-30:], sep="\n  ")
    print(tables(soak, found))
    for failure in soak.ledger.failures:
        print(f"FAILED: {failure}")
    if options.json:
        result = {
            "minutes": options.minutes,
            "counts": soak.ledger.counts,
            "failures": soak.ledger.failures,
            "growths": [asdict(growth) for growth in found],
            "samples": [asdict(sample) for _, _, sample in soak.samples],
        }
        options.json.write_text(json.dumps(result, indent=1))
    print(
        "soak: failed" if soak.ledger.num_failures else f"soak: {options.minutes:g} minutes, nothing lost, nothing grew"
    )
    return 1 if soak.ledger.num_failures else 0


if __name__ == "__main__":
    sys.exit(main())
