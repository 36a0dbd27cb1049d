"""A conversation that moves from one node to another: its next turn's TTFT there, beside computing it there.

    python -m bench.run.fleet.moved_turn [--model models/random-15m] [--tokens 3000] [--rounds 8]

Two nodes, TLS between all, nothing else to do. `advised`: an advisory sent the session's cache ahead; `on demand`: the
turn itself pulls it; `computed`: the same prompt where nothing is cached. Turns that did not run at the other node, or
with too little from cache, are left out and counted. Goal (docs/fleet.md, 7): advised takes less than half of computed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import uvloop

from bench.lib.load.http_stream import HttpStream
from bench.lib.model.random_model import ensure_checkpoint
from bench.lib.table import render

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.eventually import wait_until  # noqa: E402 (a folder, no package)
from fakes.real_fleet import RealFleet, fleet  # noqa: E402
from gateway.fleet.certificates import make_certificates  # noqa: E402

ADVISED, ON_DEMAND, COMPUTED = WAYS = ("advised", "on demand", "computed")
NUM_NEW = 32  # tokens of the turn that is measured
LEAST_CACHED = 0.95  # of the prompt, of a turn that has moved
PULL_SECONDS = 30.0
MAX_STEERS = 20
HEADER = ("the other node", "turns", "left out", "from cache %", "TTFT p50 ms", "p90", "longest")


@dataclass(frozen=True, slots=True)
class Turn:
    node: str
    ttft: float  # seconds
    cached_share: float  # of its prompt


class Talk:
    def __init__(self, running: RealFleet, vocab_size: int, num_tokens: int) -> None:
        self._running, self._vocab_size, self._num_tokens = running, vocab_size, num_tokens
        self._draw = random.Random(0)
        self._numbers = count()

    async def measure(self, way: str) -> Turn | None:
        """None: it did not come about."""
        session, prompt = f"chat {next(self._numbers)}", self._tokens(self._num_tokens)
        home = (await self._ask(prompt, session_id=session)).node
        if way == ADVISED and not await self._send_ahead(session):
            return None
        if not await self._steer(home):
            return None
        name = {"cache_salt": session} if way == COMPUTED else {"session_id": session}
        turn = await self._ask(prompt + self._tokens(NUM_NEW), **name)
        is_right = turn.cached_share == 0.0 if way == COMPUTED else turn.cached_share >= LEAST_CACHED
        return turn if is_right and turn.node != home else None

    async def _send_ahead(self, session: str) -> bool:
        before = self._pulled()
        for number in range(MAX_STEERS):
            if self._advise(session) == "prefetch":
                self._wait_for_pull(before)
                return True
            for _ in range(1 + number % 2):  # advisories and requests take turns together
                await self._ask(self._tokens(8))
        return False

    def _wait_for_pull(self, before: float) -> None:
        wait_until(lambda: self._pulled() > before, PULL_SECONDS)
        seen = before
        while seen != (seen := self._pulled()):
            time.sleep(0.5)

    async def _steer(self, home: str) -> bool:
        """The next request goes to the other node: they take turns."""
        for _ in range(MAX_STEERS):
            if (await self._ask(self._tokens(8))).node == home:
                return True
        return False

    def _tokens(self, number: int) -> list[int]:
        return [self._draw.randrange(10, self._vocab_size) for _ in range(number)]

    def _advise(self, session: str) -> str:
        body = json.dumps({"session_id": session, "lease_ms": 60_000}).encode()
        url = f"{self._running.server.url}/v1/advisories"
        with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as answer:
            return str(json.loads(answer.read())["action"])

    def _pulled(self) -> float:
        return self._running.server.metric("hocket_pulled_bytes_total")

    def _given(self) -> dict[str, int]:
        return {name: int(node["num_given"]) for name, node in self._running.status().items()}

    async def _ask(self, prompt: list[int], **fields: str) -> Turn:
        fixed = {"temperature": 0, "ignore_eos": True, "max_tokens": 2, "stream": True}
        fixed |= {"stream_options": {"include_usage": True}}
        body = json.dumps({"prompt": prompt, **fixed, **fields}).encode()
        before = self._given()
        stream = await HttpStream.connect(self._running.server.url)
        begin = time.perf_counter()
        response = await stream.request("POST", "/v1/completions", body)
        assert response.status == 200, response.body()
        stream.close()
        events = [(at, line) for at, line in response.events() if line.startswith(b"data: {")]
        usage = json.loads(events[-1][1].removeprefix(b"data: "))["usage"]
        node = next(name for name, number in self._given().items() if number > before[name])
        share = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
        return Turn(node, events[0][0] - begin, share)


async def measure(running: RealFleet, args: argparse.Namespace) -> dict[str, list[Turn | None]]:
    vocab_size = json.loads((args.model / "config.json").read_text())["vocab_size"]
    talk = Talk(running, vocab_size, args.tokens)
    found: dict[str, list[Turn | None]] = defaultdict(list)
    for number in range(-1, args.rounds):  # the first one warms up
        for way in WAYS if number % 2 else reversed(WAYS):
            turn = await talk.measure(way)
            if number >= 0:
                found[way].append(turn)
    return found


def row(way: str, turns: list[Turn | None]) -> list[str]:
    right = [turn for turn in turns if turn is not None]
    counts = [way, str(len(right)), str(len(turns) - len(right))]
    if not right:
        return [*counts, *["-"] * 4]
    ttft = [1e3 * turn.ttft for turn in right]
    cached = 100 * np.mean([turn.cached_share for turn in right])
    return [*counts, f"{cached:.1f}", *(f"{value:.1f}" for value in np.percentile(ttft, (50, 90, 100)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a directory (default: models/random-15m, made where it is not)")
    parser.add_argument("--tokens", type=int, default=3000, help="of the conversation before the turn")
    parser.add_argument("--rounds", type=int, default=8, help="of each way, beside one that warms up")
    args = parser.parse_args()
    args.model = args.model or ensure_checkpoint("15m", ROOT / "models")
    options = ("--dtype", "float32", "--kv-cache-memory-bytes", "256M", "--host-cache-bytes", "512M")
    with tempfile.TemporaryDirectory(prefix="moved-") as temporary:
        folder = Path(temporary)
        make_certificates(folder / "cluster")
        gateway = ("--routing", "round_robin", "--no-access-log")
        with fleet(folder, folder / "cluster", *gateway, model=str(args.model.resolve())) as running:
            for name in "ab":
                running.add(name, *options)
            for name in "ab":
                running.wait_for(name, "up")
            found = uvloop.run(measure(running, args))
    print(render(HEADER, [row(way, found[way]) for way in WAYS]))
    medians = {way: np.median([turn.ttft for turn in found[way] if turn is not None] or [np.nan]) for way in WAYS}
    for way in (ADVISED, ON_DEMAND):
        goal = "; goal: less than 0.5" if way == ADVISED else ""
        print(f"median TTFT {way} over computed: {medians[way] / medians[COMPUTED]:.3f}{goal}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
