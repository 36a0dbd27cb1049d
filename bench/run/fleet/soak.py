"""A soak of a fleet: streams, announced conversations and batches on three nodes, one of which is always in trouble.

    python -m bench.run.fleet.soak --minutes 20 [--streams 50] [--pause 20] [--calm-minutes 4] [--seed 1] [--json FILE]
        [--keep DIR]

First everything that will be asked is asked once, undisturbed. Then, every `pause` seconds, a node that is up is drawn
and one of: its engine killed, its engine stopped, its node manager killed, both killed, its cables cut for some
seconds, the node drained and started again. Every stream has to say what it said undisturbed, with one final event;
every batch has to have each row once, with the same text. Afterwards, for `calm-minutes`, the same load goes on
undisturbed and what gateway and engines take has to stay as it is; in the end all nodes are up, all gauges zero, and
the gateway has as many descriptors as before. The load stays within what the nodes can queue.

Exit status: 0 all of that holds, 1 something does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import psutil

from bench.lib.soak.client import AnswerError, SoakClient
from bench.lib.soak.fleet_load import FleetLoad
from bench.lib.soak.ledger import Ledger
from bench.lib.soak.watch import MIN_SAMPLES, Growth, Sample, forgotten, growths, restless, take
from bench.lib.table import render

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.real_fleet import RealFleet, Relay, free_port  # noqa: E402 (a folder, no package)
from gateway.fleet.certificates import make_certificates  # noqa: E402
from gateway.fleet.operator_line import give_order  # noqa: E402
from schedcore.api.cluster_tls import OPERATOR, ClusterTls  # noqa: E402
from schedcore.api.fleet_wire import DrainNode  # noqa: E402

NAMES = ("a", "b", "c")
NODE_OPTIONS = ("--kv-cache-memory-bytes", "24M", "--host-cache-bytes", "32M")
GATEWAY_OPTIONS = (
    *("--engine-timeout-ms", "5000", "--fleet-wait-ms", "120000", "--resume-wait-ms", "120000"),
    "--no-access-log",
)
TROUBLES = ("kill engine", "stop engine", "kill manager", "kill both", "cut", "drain")
UP_SECONDS = 180.0  # generous: for a node to come back
NUM_HELLOS = 24
REST_SECONDS = 120.0  # generous: for gauges to become zero
MAX_NEW_DESCRIPTORS = 8  # of the gateway at rest, over the whole soak
WARM = 0.3  # of the calm part, before slopes are taken
SAMPLE_SECONDS = 2.0


@contextlib.contextmanager
def debugging() -> Iterator[None]:
    """What is started meanwhile says what asyncio finds forgotten."""
    variables = {"PYTHONASYNCIODEBUG": "1", "PYTHONFAULTHANDLER": "1", "PYTHONWARNINGS": "default::ResourceWarning"}
    os.environ |= variables
    yield
    for name in variables:
        del os.environ[name]


class SoakedFleet:
    """Nodes behind cables. Its methods block: call them in threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cluster_dir = folder / "cluster"
        make_certificates(self._cluster_dir)
        with debugging():
            self.fleet = RealFleet(folder, self._cluster_dir, *GATEWAY_OPTIONS)
        self._cables: dict[str, list[Relay]] = {}
        host, port = self.fleet.address.split(":")
        for number, name in enumerate(NAMES):
            engine_port, own_host = free_port(), f"127.0.0.{number + 2}"
            inward = Relay("127.0.0.1", 0, (host, int(port)))
            outward = Relay(own_host, engine_port, ("127.0.0.1", engine_port))
            self._cables[name] = [inward, outward]
            listen = ("--listen", f"127.0.0.1:{engine_port}", "--advertise", own_host)
            self.fleet.add(name, *NODE_OPTIONS, *listen, address=f"127.0.0.1:{inward.port}")
        for name in NAMES:
            self.fleet.wait_for(name, "up", UP_SECONDS)

    def end(self) -> None:
        self.fleet.end()
        for cables in self._cables.values():
            for cable in cables:
                cable.close()

    def up(self) -> list[str]:
        return [name for name, node in self.fleet.status().items() if node["condition"] == "up"]

    def trouble(self, what: str, name: str, seconds: float) -> None:
        node = self.fleet.nodes[name]
        match what:
            case "kill engine":
                os.kill(node.engine_pid, signal.SIGKILL)
            case "stop engine":
                os.kill(node.engine_pid, signal.SIGSTOP)
            case "kill manager":
                node.kill_manager()
                time.sleep(seconds)
                node.start_manager()
            case "kill both":
                pid = node.engine_pid
                node.kill_manager()
                os.kill(pid, signal.SIGKILL)
                node.start_manager()
            case "cut":
                for cable in self._cables[name]:
                    cable.cut()
                time.sleep(seconds)
                for cable in self._cables[name]:
                    cable.mend()
            case "drain":
                order = DrainNode(name, UP_SECONDS)
                tls = ClusterTls(self._cluster_dir, OPERATOR)
                asyncio.run(give_order(f"tcp://{self.fleet.address}", tls, order))
                node.manager.wait(UP_SECONDS)
                node.start_manager()
            case _:
                raise ValueError(what)

    def take(self, at: float, metrics: str) -> dict[str, Sample]:
        """By node. Raises psutil.Error."""
        gateway = psutil.Process(self.fleet.server.process.pid)
        return {
            name: take(at, gateway, psutil.Process(node.engine_pid), self.folder / "data", self.fleet.log_file, metrics)
            for name, node in self.fleet.nodes.items()
        }

    def num_descriptors(self) -> int:
        return psutil.Process(self.fleet.server.process.pid).num_fds()

    def logs(self) -> Iterator[tuple[str, str]]:
        """The gateway's and the node managers'."""
        yield "gateway", self.fleet.log()
        for name, node in self.fleet.nodes.items():
            yield name, node.log_file.read_text(errors="replace")


class FleetSoak:
    def __init__(self, fleet: SoakedFleet, minutes: float, calm_minutes: float, pause: float, seed: int) -> None:
        self.ledger = Ledger()
        self.samples: list[dict[str, Sample]] = []
        self.gaps_s: list[float] = []
        self._fleet = fleet
        self._seconds, self._calm_seconds, self._pause = 60 * minutes, 60 * calm_minutes, pause
        self._rng = random.Random(seed)
        self._stop = asyncio.Event()

    async def run(self, num_streams: int, num_batches: int) -> None:
        self._client = SoakClient(self._fleet.fleet.server.url, "none")
        try:
            load = FleetLoad(self._client, "demo", self.ledger, self._stop, self._rng, self.gaps_s)
            await load.prepare()
            num_descriptors = await self._rest()
            self._start = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for act in load.all(num_streams, num_batches):
                    group.create_task(act)
                teller = group.create_task(self._tell())
                await self._disturb()
                await self._stay_calm()
                self._stop.set()
                teller.cancel()
            if (now := await self._rest()) > num_descriptors + MAX_NEW_DESCRIPTORS:
                self.ledger.fail(f"the gateway at rest has {now} descriptors, and had {num_descriptors}")
        finally:
            await self._client.close()

    async def _disturb(self) -> None:
        due = self._start
        while due + self._pause < self._start + self._seconds:
            due += self._pause
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            up = await asyncio.to_thread(self._fleet.up)
            if len(up) < 2:
                self.ledger.count("nobody disturbed: one node only is up")
                continue
            what, name, seconds = self._rng.choice(TROUBLES), self._rng.choice(up), self._rng.uniform(0.5, 5.0)
            self.ledger.count(what)
            await asyncio.to_thread(self._fleet.trouble, what, name, seconds)

    async def _stay_calm(self) -> None:
        await self._until_all_are_up()
        begin = time.monotonic()
        while time.monotonic() < begin + self._calm_seconds:
            if time.monotonic() > begin + WARM * self._calm_seconds:
                with contextlib.suppress(psutil.Error, OSError):
                    metrics = (await self._client.bytes_of("GET", "/metrics")).decode()
                    at = time.monotonic() - self._start
                    self.samples.append(await asyncio.to_thread(self._fleet.take, at, metrics))
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _until_all_are_up(self) -> None:
        deadline = time.monotonic() + UP_SECONDS
        while len(up := await asyncio.to_thread(self._fleet.up)) < len(NAMES):
            if time.monotonic() > deadline:
                self.ledger.fail(f"only {up} are up {UP_SECONDS:g} s after the last trouble")
                return
            await asyncio.sleep(0.5)

    async def _rest(self) -> int:
        """Until nothing is open any more. The gateway's descriptors then, without clients' connections."""
        deadline = time.monotonic() + REST_SECONDS
        for session in range(24):
            with contextlib.suppress(AnswerError):
                await self._client.ask("DELETE", f"/v1/sessions/session-{session}")
        while unrest := restless((await self._client.bytes_of("GET", "/metrics")).decode()):
            if time.monotonic() > deadline:
                self.ledger.fail(f"after {REST_SECONDS:g} s of rest: {', '.join(unrest)}")
                break
            await asyncio.sleep(1.0)
            # An idle engine tells nothing new, and one that last said that it was busy is passed by: so many at once.
            hello = {"model": "demo", "prompt": "Hello", "max_tokens": 16, "ignore_eos": True}
            await asyncio.gather(*(self._client.ask("POST", "/v1/completions", json=hello) for _ in range(NUM_HELLOS)))
        await self._client.hang_up()
        await asyncio.sleep(1.0)
        return self._fleet.num_descriptors()

    async def _tell(self) -> None:
        """A line per minute, and what has failed meanwhile."""
        num_told = 0
        for minute in range(1, 10**6):
            await asyncio.sleep(max(0.0, self._start + minute * 60 - time.monotonic()))
            counts = self.ledger.counts
            print(
                f"{minute:4d} min: {counts['story ok']} stories, {counts['turn ok']} turns, {counts['advisory ok']} "
                f"advisories, {counts['batch rows']} rows, {sum(counts[what] for what in TROUBLES)} troubles; "
                f"longest gap {max(self.gaps_s, default=0):.1f} s; {self.ledger.num_failures} failures",
                flush=True,
            )
            for failure in self.ledger.failures[num_told:]:
                print(f"FAILED: {failure}", flush=True)
            num_told = len(self.ledger.failures)


def judge(soak: FleetSoak, fleet: SoakedFleet) -> dict[str, list[Growth]]:
    """Growths by node; adds to the ledger's failures what only shows in the end."""
    for who, log in fleet.logs():
        for line in forgotten(log)[:10]:
            soak.ledger.fail(f"in the log of {who}: {line}")
    for what in ("story ok", "turn ok", "advisory ok", "batch completed"):
        if not soak.ledger.counts[what]:
            soak.ledger.fail(f"nothing of this kind: {what}")
    if len(soak.samples) < MIN_SAMPLES:
        soak.ledger.fail(f"only {len(soak.samples)} calm samples: too short to say whether anything grows")
        return {}
    found = {name: growths([sample[name] for sample in soak.samples]) for name in NAMES}
    for name, grown in found.items():
        for growth in grown:
            if growth.is_too_much and (name == NAMES[0] or growth.name.startswith("engine")):
                soak.ledger.fail(f"{name}: {growth.name} grows by {growth.growth:.0f}, more than {growth.limit:.0f}")
    return found


def tables(soak: FleetSoak, found: dict[str, list[Growth]]) -> str:
    done = render(("what", "times"), [(what, str(times)) for what, times in sorted(soak.ledger.counts.items())])
    gaps = [1000 * gap for gap in soak.gaps_s] or [float("nan")]
    marks = [(f"p{q:g}", f"{np.percentile(gaps, q):.0f}") for q in (50, 90, 99, 99.9)]
    pauses = render(("a stream's longest gap", "ms"), [*marks, ("longest", f"{max(gaps):.0f}")])
    rows = [
        (name if g.name.startswith("engine") else "gateway", g.name, f"{g.first:.0f}", f"{g.last:.0f}",
         f"{g.growth:.0f}", f"{g.limit:.0f}")
        for name, grown in found.items()
        for g in grown
        if name == NAMES[0] or g.name.startswith("engine")
    ]  # fmt: skip
    taken = render(("calm", "what", "first", "last", "growth", "limit"), rows) if rows else ""
    return f"{done}\n\n{pauses}\n\n{taken}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="in which nodes are disturbed")
    parser.add_argument("--calm-minutes", type=float, default=4.0, help="after that, in which nothing may grow")
    parser.add_argument("--pause", type=float, default=20.0, metavar="S", help="between two troubles")
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--batches", type=int, default=2, help="at a time")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (default: 1); times differ all the same")
    parser.add_argument("--json", type=Path, metavar="FILE", help="counts, failures, growths and gaps")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where logs and data stay (default: nowhere)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fleet-soak-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        fleet = SoakedFleet(folder)
        soak = FleetSoak(fleet, options.minutes, options.calm_minutes, options.pause, options.seed)
        try:
            asyncio.run(soak.run(options.streams, options.batches))
        finally:
            fleet.end()
        found = judge(soak, fleet)
    print(tables(soak, found))
    for failure in soak.ledger.failures:
        print(f"FAILED: {failure}")
    if options.json:
        grown = {name: [asdict(growth) for growth in some] for name, some in found.items()}
        result = {"counts": soak.ledger.counts, "failures": soak.ledger.failures, "growths": grown}
        options.json.write_text(json.dumps(result | {"gaps_s": soak.gaps_s}, indent=1))
    failed = f"fleet soak: failed, {soak.ledger.num_failures} times"
    print(
        failed if soak.ledger.num_failures else f"fleet soak: {options.minutes:g} minutes, nothing wrong, nothing lost"
    )
    return 1 if soak.ledger.num_failures else 0


if __name__ == "__main__":
    sys.exit(main())
