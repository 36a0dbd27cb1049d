"""Symphony's figures 12, 14 and 17: conversations on eight engines, recomputed, swapped to the host, or announced.

    python -m bench.studies.symphony [--quick] [--seeds N] [--processes 2] [--json FILE] [--output docs/results]

Llama-3.1-8B, eight A100 of 80 GB in two machines.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby

import numpy as np

from bench.studies.document import A100_LIMITS, ERRORS_DRAWN, Cell, Column, Document, Panel, Series, Table
from bench.studies.jobs import run_all
from bench.studies.measurement import Spread
from bench.studies.study import run_study
from bench.studies.workloads import DATA
from schedcore.simulation.cost_model import find_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.fleet.chat_users import MEAN_TYPING_SECONDS, READING_TOKENS_PER_SECOND, Round
from schedcore.simulation.fleet.cluster import Cluster, ClusterResult, simulate_cluster
from schedcore.simulation.fleet.cluster_node import NodeMemory
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.workloads.traces import read_trace

GIB = 2**30
HOST_BYTES = 64 * GIB  # of a machine's 256 GB, per engine
MAX_CONTEXT = 8192
LEVELS_MS = (15.0, 20.0, 25.0, 30.0)  # normalised latencies at which users are counted
MISSED = (0.0, 0.1, 0.25, 0.5, 1.0)

ABOUT = (
    "Set-up as in the paper: eight engines, each one A100 of 80 GB with Llama-3.1-8B, four to a machine with 256 GB "
    "of memory and 100 Gbit/s between machines; a fixed number of users who hold ShareGPT's conversations, read "
    f"({READING_TOKENS_PER_SECOND} tokens a second) and type ({MEAN_TYPING_SECONDS} s on average). Normalised latency: "
    "mean over turns of a turn's time over the tokens of its answer.",
    "`recompute`: nothing is kept between turns, each request goes to the engine with the fewest (the paper's vLLM). "
    "`device cache, sticky`: vLLM's prefix cache, a conversation stays where it began. `host swap, sticky`: and what "
    "the device drops is kept on the host (the paper's InferCept). `tiers, least loaded`: every block is written "
    "behind to host and disk, each request goes to the engine with the fewest, and its cache moves there with it. "
    "`advisories`: that engine is chosen when the user begins to type, and the cache moves meanwhile. All under our "
    "scheduler, first come first served.",
    "A migrated cache arrives on the new engine's host and comes to its device with the request; on the engine that "
    "has it already an advisory brings it to the device. What comes with the request comes layer group by layer group "
    "while its first step runs, where the scheduler finds that this keeps nobody waiting. Loading a block from another "
    "machine's disk costs the network only.",
    ERRORS_DRAWN,
    A100_LIMITS,
)


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    routing: str
    host_bytes: int = 0
    has_disk: bool = False
    enable_prefix_caching: bool = True


SETTINGS = (
    Setting("recompute", "least_loaded", enable_prefix_caching=False),
    Setting("device cache, sticky", "sticky"),
    Setting("host swap, sticky", "sticky", HOST_BYTES),
    Setting("tiers, least loaded", "least_loaded", HOST_BYTES, has_disk=True),
    Setting("advisories", "advised", HOST_BYTES, has_disk=True),
)
# What each part brings, one after the other
PARTS = (
    ("prefix cache on the device", "recompute", "device cache, sticky"),
    ("host tier", "device cache, sticky", "host swap, sticky"),
    ("disk, migration and least-loaded routing", "host swap, sticky", "tiers, least loaded"),
    ("advisories", "tiers, least loaded", "advisories"),
)


@dataclass(frozen=True, slots=True)
class Scale:
    users: tuple[int, ...]
    seconds: float
    num_seeds: int
    warm_up: float = 240.0
    missed: tuple[float, ...] = MISSED
    missed_users: int = 4096


FULL = Scale(users=(1024, 2048, 3072, 4096, 6144), seconds=120, num_seeds=1, warm_up=150, missed=(0.0, 0.1, 0.5, 1.0))
QUICK = Scale(users=(64, 256), seconds=60, num_seeds=1, warm_up=90, missed=(0.0, 0.1), missed_users=64)


@cache
def conversations() -> list[list[Round]]:
    trace = read_trace(DATA / "sharegpt_turns.csv.gz").fitting(MAX_CONTEXT)
    rows = zip(trace.sessions, trace.input_tokens, trace.output_tokens, strict=True)
    found = []
    for _, turns in groupby(rows, key=lambda row: row[0]):
        rounds, length = [], 0
        for _, num_input, num_output in turns:
            rounds.append(Round(max(1, num_input - length), max(1, num_output)))
            length = max(length + 1, num_input) + max(1, num_output)
        found.append(rounds)
    return found


@cache
def base_engine() -> SimulatedEngine:
    shape = model_shape("llama-3.1-8b")
    return SimulatedEngine(
        model=shape, cost=find_cost(shape, "a100"), memory_bytes=80 * GIB, max_model_len=2 * MAX_CONTEXT,
        draw_errors=True,
    )  # fmt: skip


def cluster(setting: Setting, missed_ratio: float = 0.0) -> Cluster:
    engine = base_engine().with_policy("fcfs", enable_prefix_caching=setting.enable_prefix_caching)
    memory = NodeMemory(setting.host_bytes, setting.has_disk)
    return Cluster(engine=engine, memory=memory, routing=setting.routing, missed_ratio=missed_ratio)


def run_one(of: Cluster, num_users: int, scale: Scale, seed: int) -> ClusterResult:
    return simulate_cluster(of, num_users, conversations(), seconds=scale.seconds, warm_up=scale.warm_up, seed=seed)


Runs = dict[tuple[str, float, int], list[ClusterResult]]  # setting, missed, users


def mean(results: list[ClusterResult], value: Callable[[ClusterResult], float]) -> Spread:
    values = [value(result) for result in results]
    return Spread(float(np.mean(values)), float(np.std(values)))


def users_at(runs: Runs, setting: str, level_ms: float) -> float:
    """Users at which the normalised latency passes the level: interpolated, or the most that were tried."""
    points = sorted((users, mean(found, latency_ms).mean) for (name, m, users), found in runs.items()
                    if name == setting and m == 0.0)  # fmt: skip
    best = math.nan
    for i, (users, latency) in enumerate(points):
        if latency > level_ms:
            if i == 0:
                return math.nan
            before, low = points[i - 1]
            return before + (users - before) * (level_ms - low) / (latency - low)
        best = users
    return best


def latency_ms(result: ClusterResult) -> float:
    return 1e3 * result.normalised_latency


def load_table(users: int, runs: Runs) -> Table:
    columns = [
        Column("setting"), Column("normalised latency (ms/token)", "1"), Column("TTFT mean (s)"),
        Column("TTFT p99 (s)"), Column("turns/s"), Column("prompt from cache", "percent"),
        Column("busy", "percent"), Column("most requests over median"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for (name, missed, num_users), found in runs.items():
        if num_users == users and missed == 0.0:
            rows.append([
                name, mean(found, latency_ms), mean(found, lambda r: float(np.mean(r.ttft))),
                mean(found, lambda r: float(np.percentile(r.ttft, 99))),
                mean(found, lambda r: len(r.ttft) / r.seconds),
                mean(found, lambda r: float(r.num_cached.sum() / r.num_prompt.sum())),
                mean(found, lambda r: float(r.busy.mean())), mean(found, lambda r: r.imbalance),
            ])  # fmt: skip
    return Table(f"{users} users", columns, rows)


def users_table(runs: Runs) -> Table:
    most = max(users for _, _, users in runs)
    columns = [Column("setting")]
    for level in LEVELS_MS:
        is_aside = level == 25.0
        columns += [Column(f"users at {level:g} ms", "0", is_aside), Column("of recompute", "times", is_aside)]
    rows: list[list[Cell]] = []
    for setting in SETTINGS:
        row: list[Cell] = [setting.name]
        for level in LEVELS_MS:
            users = users_at(runs, setting.name, level)
            row += [users, users / users_at(runs, SETTINGS[0].name, level)]
        rows.append(row)
    note = (
        f"Between the numbers of users tried, latency is interpolated; {most} means at least as many. The paper: 512 "
        "users at 20.5 ms where vLLM serves 64 at 18 ms, 8 times as many; it does not say how fast its users read."
    )
    return Table("Users served at equal normalised latency (ms per token)", columns, rows, note)


def parts_table(runs: Runs) -> Table:
    """Of the gain over recompute, whose it is."""
    columns = [Column("part"), Column("users"), Column("without (ms/token)"), Column("with"), Column("less", "percent")]
    rows: list[list[Cell]] = []
    for part, without, name in PARTS:
        for users in sorted({users for _, _, users in runs}):
            before, after = (mean(runs[setting, 0.0, users], latency_ms) for setting in (without, name))
            rows.append([part, f"{users}", before, after, 1 - after.mean / before.mean])
    note = "Normalised latency; runs of one seed have the same users, conversations and errors of step times."
    return Table("What each part brings", columns, rows, note)


def missed_table(runs: Runs, scale: Scale) -> Table:
    """Figure 17."""
    columns = [
        Column("missed advisories", "percent"),
        Column("normalised latency (ms/token)", "2"),
        Column("change", "percent"),
    ]
    rows: list[list[Cell]] = []
    none = mean(runs["advisories", 0.0, scale.missed_users], latency_ms).mean
    for ratio in scale.missed:
        found = mean(runs["advisories", ratio, scale.missed_users], latency_ms)
        rows.append([ratio, found, found.mean / none - 1])
    return Table(
        f"Missed advisories, {scale.missed_users} users",
        columns,
        rows,
        "The paper: 6 % at 10 % missed. Here an advisory shortens first tokens, and little else: a request without one "
        "still goes to the engine that serves it soonest, and its cache comes with it, layer group by layer group. The "
        "gain in normalised latency is that of the tiers, of migration and of that routing.",
    )


def build(scale: Scale, processes: int, seeds: int | None) -> Document:
    num_seeds = seeds or scale.num_seeds
    keys = [(s, 0.0, users) for users in scale.users for s in SETTINGS]
    advised = SETTINGS[-1]
    keys += [(advised, m, scale.missed_users) for m in scale.missed if (advised, m, scale.missed_users) not in keys]
    jobs = {
        (s.name, m, users, seed): partial(run_one, cluster(s, m), users, scale, seed)
        for s, m, users in keys
        for seed in range(num_seeds)
    }
    found = run_all(jobs, processes, "clusters")
    runs: Runs = {}
    for (name, missed, users, _), result in found.items():
        runs.setdefault((name, missed, users), []).append(result)
    document = Document("symphony", "Symphony: conversations on eight engines", list(ABOUT))
    document.cost_models.add(base_engine().cost.name)
    document.tables = [
        users_table(runs),
        parts_table(runs),
        *(load_table(u, runs) for u in scale.users),
        missed_table(runs, scale),
    ]
    document.panels = [panel(runs, "Normalised latency", "ms per token", latency_ms, 60.0)]
    document.panels.append(panel(runs, "TTFT, mean", "seconds", lambda r: float(np.mean(r.ttft)), 3.0))
    document.panels.append(panel(runs, "Most requests on an engine over the median", "", lambda r: r.imbalance, None))
    return document


def panel(runs: Runs, title: str, label: str, value: Callable[[ClusterResult], float], limit: float | None) -> Panel:
    series = []
    for setting in SETTINGS:
        points = sorted((u, mean(f, value).mean) for (name, m, u), f in runs.items() if name == setting.name and m == 0)
        series.append(Series(setting.name, [float(u) for u, _ in points], [y for _, y in points]))
    return Panel(title, "users", label, series, y_limit=limit)


if __name__ == "__main__":
    sys.exit(run_study(__doc__ or "", FULL, QUICK, build))
