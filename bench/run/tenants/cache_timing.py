"""Whether the time to a first token tells one tenant what another has asked.

    python -m bench.run.tenants.cache_timing [--model demo] [--trials 200] [--words 400]

A victim asks a random prompt, then a spy asks either the same prompt ("present") or another of the same length
("absent") and times its first token, in random order. Two samples that come from one distribution are told apart by
Mann-Whitney's test and by Kolmogorov and Smirnov's with p < 0.01 in one run of a hundred each. Three spies: one with a
key of its own, one with the victim's key and another cache_salt, and, as the control that shows that the method sees a
shared cache, one with key and salt of the victim. Exit status 1 if a spy learns something or the control does not.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from scipy import stats

from bench.lib import contestants, results
from bench.lib.server.server_process import ServerProcess
from bench.lib.table import render

KEYS = ("victim", "spy")
SIGNIFICANT = 0.01
HEADER = ("spy", "present ms p50", "absent ms p50", "cached tokens", "p (Mann-Whitney)", "p (KS)", "advantage")


@dataclass(frozen=True, slots=True)
class Spy:
    name: str
    key: str
    salt: str
    shares: bool = False  # it is the victim itself


SPIES = (
    Spy("another key", "spy", "s"),
    Spy("another salt", "victim", "t"),
    Spy("control: the same", "victim", "s", True),
)


@dataclass(slots=True)
class Samples:
    """Milliseconds until the answer's only token, and the most prompt tokens that came from the cache."""

    present: list[float] = field(default_factory=list)
    absent: list[float] = field(default_factory=list)
    max_cached: int = 0

    @property
    def p_values(self) -> tuple[float, float]:
        rank = stats.mannwhitneyu(self.present, self.absent).pvalue
        return float(rank), float(stats.ks_2samp(self.present, self.absent).pvalue)

    @property
    def advantage(self) -> float:
        """Of who guesses by the best threshold, over a coin: 0 is none, 1 is certainty."""
        return float(stats.ks_2samp(self.present, self.absent).statistic)

    @property
    def differ(self) -> bool:
        return min(self.p_values) < SIGNIFICANT / 2


class Line:
    """A kept connection."""

    def __init__(self, base_url: str, key: str) -> None:
        parts = urlsplit(base_url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}

    def ask(self, prompt: str, salt: str) -> tuple[float, int]:
        """Milliseconds, and prompt tokens from the cache."""
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0, "cache_salt": salt})
        start = time.perf_counter()
        self._connection.request("POST", "/v1/completions", body, self._headers)
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        seconds = time.perf_counter() - start
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {answer}")
        return seconds * 1e3, int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def random_prompt(chance: random.Random, num_words: int) -> str:
    return " ".join(str(chance.randrange(10, 100)) for _ in range(num_words))


def measure(base_url: str, num_trials: int, num_words: int, seed: int) -> dict[str, Samples]:
    chance = random.Random(seed)
    lines = {key: Line(base_url, key) for key in KEYS}
    found = {spy.name: Samples() for spy in SPIES}
    for _ in range(num_trials):
        trials = [(spy, is_present) for spy in SPIES for is_present in (True, False)]
        chance.shuffle(trials)
        for spy, is_present in trials:
            asked, other = random_prompt(chance, num_words), random_prompt(chance, num_words)
            lines["victim"].ask(asked, "s")
            milliseconds, num_cached = lines[spy.key].ask(asked if is_present else other, spy.salt)
            samples = found[spy.name]
            (samples.present if is_present else samples.absent).append(milliseconds)
            samples.max_cached = max(samples.max_cached, num_cached)
    return found


def describe(found: dict[str, Samples]) -> str:
    rows: list[Sequence[str]] = []
    for name, samples in found.items():
        rank, distance = samples.p_values
        medians = (statistics.median(samples.present), statistics.median(samples.absent))
        rows.append(
            [
                name,
                *(f"{median:.3f}" for median in medians),
                str(samples.max_cached),
                f"{rank:.3g}",
                f"{distance:.3g}",
                f"{samples.advantage:.3f}",
            ]
        )
    return render(HEADER, rows)


def is_as_promised(found: dict[str, Samples]) -> bool:
    """The spies learn nothing, and the control shows that this would have been seen."""
    return all(
        (found[spy.name].differ and found[spy.name].max_cached > 0)
        if spy.shares
        else (not found[spy.name].differ and found[spy.name].max_cached == 0)
        for spy in SPIES
    )


def main() -> int:
    contestants.prepare_process()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="demo, 15m, 100m, 0.5b or a checkpoint's folder")
    parser.add_argument("--trials", type=int, default=200, help="of each kind")
    parser.add_argument("--words", type=int, default=400, help="of a prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--server-command", default=contestants.OUR_COMMAND)
    args = parser.parse_args()
    contestants.RESULTS.mkdir(parents=True, exist_ok=True)
    folder = args.model if args.model == "demo" else str(contestants.model_folder(args.model))
    command = f"HOCKET_API_KEY={','.join(KEYS)} {args.server_command} --no-access-log --no-offline"
    with ServerProcess("timing", command, shlex.quote(folder), contestants.RESULTS / "timing.log") as server:
        found = measure(server.base_url, args.trials, args.words, args.seed)
    machine = results.this_machine()
    print(f"{machine.cpu}, {machine.num_cores} cores, commit {results.commit()}; {args.model}, {args.trials} trials\n")
    print(describe(found))
    return 0 if is_as_promised(found) else 1


if __name__ == "__main__":
    sys.exit(main())
