"""Sessions that do not fit into device memory: what tiers and advisories give back.

    python -m bench.run.advisories [--model models/random-100m] [--users 32] [--seconds 120]
                               [--variants host,advisories] [--output docs/results]

The same users (bench/lib/load/session_load.py) talk to servers that differ in what they keep of a conversation between
two of its turns. Writes advisories.md and advisories.png. Everything runs on one machine; compare variants with each
other.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.lib.load.session_load import Habits, Scales, Turn, conversations, mean_context, run_users
from bench.lib.results import commit, now, this_machine
from bench.lib.server.server_process import ServerFailedError, ServerProcess, end_with_signals
from bench.lib.table import render, wrapped

ROOT = Path(__file__).resolve().parents[2]
HEADER = ("variant", "turns", "TTFT p50 ms", "p99", "mean", "norm. latency ms/token", "tokens/s", "from cache %")


SILENT = Habits()


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    text: str
    options: str  # of hocket serve; {device}, {live}, {disk}: bytes and a folder
    habits: Habits = SILENT


TIERED = "--kv-cache-memory-bytes {device} --host-cache-bytes {live}"
VARIANTS = (
    Variant("none", "no cache across turns", "--kv-cache-memory-bytes {device} --no-enable-prefix-caching"),
    Variant("prefix", "prefix cache alone", "--kv-cache-memory-bytes {device}"),
    Variant("host", "+ host", TIERED),
    Variant(
        "disk",
        "+ disk, host as small as the device",
        "--kv-cache-memory-bytes {device} --host-cache-bytes {device} "
        "--disk-cache-dir {disk} --disk-cache-bytes {live}",
    ),
    Variant("advisories", "host + advisories", TIERED, Habits(advises=True)),
    Variant("missed", "host + advisories, 10 % missed", TIERED, Habits(advises=True, missed_ratio=0.1)),
    Variant("drafts", "host + advisories with drafts", TIERED, Habits(advises=True, sends_drafts=True)),
    Variant("fits", "everything fits into device memory", "--kv-cache-memory-bytes {live}"),
)


@dataclass(frozen=True, slots=True)
class Result:
    variant: Variant
    turns: list[Turn]  # follow-ups
    seconds: float
    num_tokens: int  # generated, by first turns too
    counts: dict[str, float]

    def ttft_ms(self, percent: int) -> float:
        return statistics.quantiles([turn.ttft * 1e3 for turn in self.turns], n=100)[percent - 1]

    @property
    def mean_ttft_ms(self) -> float:
        return statistics.fmean(turn.ttft * 1e3 for turn in self.turns)

    @property
    def normalised_ms(self) -> float:
        """Mean of a turn's time over the tokens of its answer (Symphony, section 4)."""
        return statistics.fmean(turn.e2e * 1e3 / turn.num_output for turn in self.turns)

    def row(self) -> list[str]:
        cached = sum(turn.num_cached for turn in self.turns) / sum(turn.num_prompt for turn in self.turns)
        return [
            self.variant.text,
            str(len(self.turns)),
            f"{self.ttft_ms(50):.0f}",
            f"{self.ttft_ms(99):.0f}",
            f"{self.mean_ttft_ms:.0f}",
            f"{self.normalised_ms:.1f}",
            f"{self.num_tokens / self.seconds:.0f}",
            f"{100 * cached:.1f}",
        ]


def measure(args: argparse.Namespace, variant: Variant, sizes: dict[str, int], scales: Scales) -> Result:
    vocab_size = json.loads((Path(args.model) / "config.json").read_text())["vocab_size"]
    with tempfile.TemporaryDirectory() as folder:
        options = variant.options.format(disk=Path(folder) / "disk", **sizes)
        limits = "--max-advisories-per-second 1000 --max-advisory-bytes-per-second 64M --no-access-log"
        serve = f"cd {ROOT} && exec {sys.executable} -m gateway.cli.main serve {{model}} --port {{port}}"
        command = f"{serve} {options} {limits} {args.serve}"
        log = Path(folder) / "server.log"
        with ServerProcess(variant.name, command, str(Path(args.model).resolve()), log) as server:
            load = run_users(
                server.base_url, args.users, vocab_size, scales, variant.habits, args.warm_up, args.seconds
            )
            turns = uvloop.run(load)
            counts = counters(server.base_url)
    num_tokens = sum(turn.num_output for turn in turns)
    return Result(variant, [turn for turn in turns if turn.is_follow_up], args.seconds, num_tokens, counts)


def counters(url: str) -> dict[str, float]:
    """What the server says of advisories, tiers and its prefix cache."""
    with urllib.request.urlopen(f"{url}/metrics") as response:
        text = response.read().decode()
    lines = re.findall(r"^(hocket_\S*(?:advis|announced|tier|prefix_cache|restore|preempt)\S*) (\S+)$", text, re.M)
    return {name: float(value) for name, value in lines if "_bucket" not in name and float(value)}


def bytes_per_token(model: Path) -> int:
    config = json.loads((model / "config.json").read_text())
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return int(config["num_hidden_layers"] * 2 * heads * head_dim * 2)  # 16 bit


def document(args: argparse.Namespace, results: list[Result], sizes: dict[str, int], scales: Scales) -> str:
    machine = this_machine()
    command = shlex.join(["python", "-m", "bench.run.advisories", *sys.argv[1:]])
    by_name = {result.variant.name: result for result in results}
    parts = [
        "# Sessions beyond device memory, measured\n",
        f"**Measured**, not simulated: `{command}`, {machine.cpu}, {machine.num_cores} cores, load "
        f"{machine.load_average:.1f} before the run, {now()[:10]}, commit {commit()}.\n",
        f"{args.users} users of {Path(args.model).name} (random weights), {args.seconds:.0f} s per variant after "
        f"{args.warm_up:.0f} s of warm-up. Lengths: ShareGPT's rounds x {scales.length:g}, conversations of several "
        f"turns, at most {scales.max_tokens} tokens. Pauses: gaps between turns of Mooncake's trace x {scales.time:g}; "
        f"advisories come {scales.lead_seconds:.2f} s before the message (Symphony's 11.3 s, scaled alike). "
        f"Device memory {sizes['device'] >> 20} MiB, the live conversations of all users about "
        f"{sizes['live'] // 2 >> 20} MiB. Follow-up "
        "turns only, tokens per second of all.\n",
        render(HEADER, [result.row() for result in results]) + "\n",
        "![TTFT of follow-up turns](advisories.png)\n",
    ]
    if {"advisories", "fits"} <= by_name.keys():
        ratio = by_name["advisories"].ttft_ms(50) / by_name["fits"].ttft_ms(50)
        parts.append(f'TTFT p50 with advisories: {ratio:.2f} x that of "everything fits" (asked: 1.2).\n')
    if {"advisories", "missed"} <= by_name.keys():
        loss = by_name["missed"].normalised_ms / by_name["advisories"].normalised_ms - 1
        parts.append(f"10 % missed advisories change the mean normalised latency by {loss:+.1%} (asked: 6 %).\n")
    parts.append("## What the servers counted\n")
    for result in results:
        counts = ", ".join(f"`{name}` {value:g}" for name, value in result.counts.items())
        parts.append(f"- {result.variant.text}: {counts or 'nothing'}")
    return wrapped("\n".join(parts) + "\n")


def draw(results: list[Result], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for result in results:
        values = sorted(turn.ttft * 1e3 for turn in result.turns)
        shares = [(i + 1) / len(values) for i in range(len(values))]
        axes.step(values, shares, where="post", label=result.variant.text)
    axes.set(xscale="log", xlabel="TTFT of follow-up turns, ms", ylabel="share of turns", ylim=(0, 1))
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/random-100m", help="of bench.run.random_model, or another directory")
    parser.add_argument("--users", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=120.0, help="measured, per variant")
    parser.add_argument("--warm-up", type=float, default=30.0)
    parser.add_argument("--exceed", type=float, default=4.0, help="live conversations over device memory")
    parser.add_argument("--length-scale", type=float, default=Scales().length)
    parser.add_argument("--time-scale", type=float, default=Scales().time)
    parser.add_argument("--variants", default=",".join(variant.name for variant in VARIANTS))
    parser.add_argument("--serve", default="", help="further options of hocket serve")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", metavar="DIR")
    args = parser.parse_args()
    end_with_signals()
    scales = Scales(args.length_scale, args.time_scale)
    per_token = bytes_per_token(Path(args.model))
    live = int(args.users * mean_context(conversations(scales)) * per_token)
    least = int(1.5 * scales.max_tokens * per_token)  # the longest conversation has to fit
    sizes = {"device": max(least, int(live / args.exceed)), "live": max(least, 2 * live)}
    chosen = [variant for variant in VARIANTS if variant.name in args.variants.split(",")]
    results = []
    for variant in chosen:
        try:
            results.append(measure(args, variant, sizes, scales))
        except ServerFailedError as error:
            print(f"{variant.text}: {error}", file=sys.stderr)
            return 1
        print(render(HEADER, [results[-1].row()]), flush=True)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "advisories.md").write_text(document(args, results, sizes, scales), encoding="utf-8")
    draw(results, args.output / "advisories.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
