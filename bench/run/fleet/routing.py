"""Three engines on one machine, conversations beyond one engine's memory: which routing serves them best.

    python -m bench.run.fleet.routing [--model models/random-15m] [--users 24] [--seconds 40] [--rounds 2]
        [--routings round_robin,sticky,least_loaded,advised] [--output DIR]

The same users (bench/lib/load/session_load.py) talk to a gateway and three nodes, over mutual TLS; under `advised` they
say so when they begin to type. An engine's device and host hold half of the live conversations, all three one and a
half. Every fleet is new; the second round runs in the opposite order. Prints a table and writes fleet_live.md and .png
to DIR. The engines share the machine's cores: routings can be compared with each other, not with three machines.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import uvloop

from bench.lib.load.session_load import Habits, Scales, Turn, conversations, mean_context, run_users
from bench.lib.model.random_model import ensure_checkpoint
from bench.lib.results import commit, now, this_machine
from bench.lib.table import render, render_part, wrapped, write_csv
from bench.run.advisories import bytes_per_token

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.real_fleet import fleet  # noqa: E402 (a folder, no package)
from gateway.fleet.certificates import make_certificates  # noqa: E402

ROUTINGS = ("round_robin", "sticky", "least_loaded", "advised")
HEADER = (
    "routing", "follow-ups", "TTFT p50 ms", "p90", "p99", "longest", "ms/token of answer", "tokens/s", "from cache %",
    "moved MiB", "busiest node over mean",
)  # fmt: skip
SHOWN = (0, 2, 3, 4, 5, 7, 8, 10)  # on the page; all of them in its CSV file
GATEWAY = ("--no-access-log", "--max-advisories-per-second", "1000", "--max-advisory-bytes-per-second", "64M")
NAMES = ("a", "b", "c")


@dataclass(frozen=True, slots=True)
class Part:
    """One fleet's."""

    turns: list[Turn]
    moved_bytes: float
    given: list[int]  # requests, by node


def measure(args: argparse.Namespace, routing: str, memory: int, scales: Scales, vocab_size: int) -> Part:
    with tempfile.TemporaryDirectory(prefix="fleet-") as temporary:
        folder = Path(temporary)
        make_certificates(folder / "cluster")
        model = str(args.model.resolve())
        options = ("--dtype", "bfloat16", "--kv-cache-memory-bytes", f"{memory}", "--host-cache-bytes", f"{memory}")
        with fleet(folder, folder / "cluster", "--routing", routing, *GATEWAY, model=model) as running:
            for name in NAMES:
                running.add(name, *options)
            for name in NAMES:
                running.wait_for(name, "up")
            habits = Habits(advises=routing == "advised")
            load = run_users(running.server.url, args.users, vocab_size, scales, habits, args.warm_up, args.seconds)
            turns = uvloop.run(load)
            moved = running.server.metric("hocket_pulled_bytes_total")
            given = [int(node["num_given"]) for node in running.status().values()]
    return Part(turns, moved, given)


def follow_ups(parts: list[Part]) -> list[Turn]:
    return [turn for part in parts for turn in part.turns if turn.is_follow_up]


def row(routing: str, parts: list[Part], seconds: float) -> list[str]:
    turns = follow_ups(parts)
    ttft = [1e3 * turn.ttft for turn in turns]
    cached = sum(turn.num_cached for turn in turns) / sum(turn.num_prompt for turn in turns)
    num_tokens = sum(turn.num_output for part in parts for turn in part.turns)
    spread = np.mean([max(part.given) / np.mean(part.given) for part in parts])
    return [
        routing, str(len(turns)), *(f"{np.percentile(ttft, q):.0f}" for q in (50, 90, 99)), f"{max(ttft):.0f}",
        f"{np.mean([1e3 * turn.e2e / turn.num_output for turn in turns]):.1f}",
        f"{num_tokens / (seconds * len(parts)):.0f}", f"{100 * cached:.1f}",
        f"{sum(part.moved_bytes for part in parts) / 2**20:.0f}", f"{spread:.2f}",
    ]  # fmt: skip


def draw(found: dict[str, list[Part]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for routing, parts in found.items():
        values = sorted(1e3 * turn.ttft for turn in follow_ups(parts))
        axes.step(values, [(i + 1) / len(values) for i in range(len(values))], where="post", label=routing)
    axes.set(xscale="log", xlabel="TTFT of follow-up turns, ms", ylabel="share of turns", ylim=(0, 1))
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def document(args: argparse.Namespace, table: str, memory: int, scales: Scales) -> str:
    machine = this_machine()
    command = shlex.join(["python", "-m", "bench.run.fleet.routing", *sys.argv[1:]])
    return wrapped(
        "# Three engines on one machine: which routing\n\n"
        f"**Measured**, not simulated: `{command}`, {machine.cpu}, {machine.num_cores} cores, load "
        f"{machine.load_average:.1f} before the run, {now()[:10]}, commit {commit()}.\n\n"
        f"{args.users} users of {args.model.name} (random weights), {args.rounds} x {args.seconds:.0f} s per routing "
        f"after {args.warm_up:.0f} s of warm-up each. Lengths: ShareGPT's rounds x {scales.length:g}, at most "
        f"{scales.max_tokens} tokens; pauses: Mooncake's x {scales.time:g}. Each engine has {memory / 2**20:.1f} MiB "
        "on the device and as much in the host; the live conversations are about twice that. Follow-up turns only, "
        "tokens per second of all turns. Nodes pull blocks from each other under every routing.\n\n"
        f"{table}\n\nAll columns: [fleet_live.csv](fleet_live.csv).\n\n![TTFT of follow-up turns](fleet_live.png)\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a directory (default: models/random-15m, made where it is not)")
    parser.add_argument("--users", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=40.0, help="measured, per routing and round")
    parser.add_argument("--warm-up", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--routings", default="round_robin,sticky,advised")
    parser.add_argument("--length-scale", type=float, default=Scales().length)
    parser.add_argument("--time-scale", type=float, default=Scales().time)
    parser.add_argument("--output", type=Path, metavar="DIR", help="for the page and the plot (default: neither)")
    args = parser.parse_args()
    args.model = args.model or ensure_checkpoint("15m", ROOT / "models")
    scales = Scales(args.length_scale, args.time_scale)
    live = args.users * mean_context(conversations(scales)) * bytes_per_token(args.model)
    longest = 1.5 * scales.max_tokens * bytes_per_token(args.model)
    memory = int(max(longest, live / 4))
    vocab_size = json.loads((args.model / "config.json").read_text())["vocab_size"]
    chosen = [name for name in ROUTINGS if name in args.routings.split(",")]
    found: dict[str, list[Part]] = {name: [] for name in chosen}
    for number in range(args.rounds):
        for name in chosen if number % 2 == 0 else reversed(chosen):
            found[name].append(measure(args, name, memory, scales, vocab_size))
            print(f"round {number + 1}: {', '.join(row(name, found[name][-1:], args.seconds))}", flush=True)
    rows = [row(name, parts, args.seconds) for name, parts in found.items()]
    print(render(HEADER, rows))
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
        page = document(args, render_part(HEADER, rows, SHOWN), memory, scales)
        (args.output / "fleet_live.md").write_text(page, encoding="utf-8")
        write_csv(args.output / "fleet_live.csv", HEADER, rows)
        draw(found, args.output / "fleet_live.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
