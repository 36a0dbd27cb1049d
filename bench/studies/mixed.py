"""Everything at once: conversations and bursts online, questions about documents offline, one engine, every policy.

    python -m bench.studies.mixed [--quick] [--seeds N] [--processes 2] [--json FILE] [--output docs/results]

Llama-3.1-8B on one A100 of 40 GB.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from bench.studies.document import A100_LIMITS, ERRORS_DRAWN, Cell, Column, Document, Panel, Series, Table
from bench.studies.jobs import run_all
from bench.studies.measurement import Measurement, longest_waits, measure, spread
from bench.studies.paired import gain_table
from bench.studies.settings import Setting, setting_table, supported
from bench.studies.study import run_study
from bench.studies.workloads import conversations, documents, lengths
from schedcore.simulation.cost_model import find_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.simulator import simulate
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.workload import Workload

HOCKET = "hocket"
ALONE = "online alone"  # under the first setting, without offline work: what the cache could give
SETTINGS = (
    Setting("fcfs", "fcfs", note="in order of arrival, offline work included"),
    Setting("priority", "priority", note="online first"),
    Setting("apt", "apt", {"past_target_decay": 0.4}, "Apt-Serve-S; hidden states gain nothing on this model"),
    Setting("bs", "bs", note="Echo's ladder: online first, offline in order"),
    Setting("bs_e", "bs_e", note="and steps as long as deadlines allow"),
    Setting("bs_es", "bs_es", note="and plan search"),
    Setting("echo", "echo", note="and task-aware eviction, and a reserve"),
    Setting("ellm", "ellm", note="batch size by the b/r solver"),
    Setting(HOCKET, "hocket", note="the united policy"),
)

TTFT_MS, ITL_MS = 1000.0, 50.0
SESSION_RATE = 0.5  # conversations that begin per second, at load 1
BURST_RATE, BURST_CV = 1.5, 5.0  # single requests per second, at load 1
LEAST_ATTAINMENT = 0.9  # of online requests, for a policy to count
MAX_SESSION_TOKENS = 8192

ABOUT = (
    f"Online, at load 1: {SESSION_RATE:g} conversations per second begin (Poisson), each with its recorded turns, a "
    "turn after the last answer and a recorded pause (median 129 s), and "
    f"{BURST_RATE:g} single requests per second in bursts (gamma, CV {BURST_CV:g}). "
    "Conversations pile up from the start of a run to its end, and with them the load. "
    "Offline: questions about long documents, there from the start in random order, more than can be done.",
    f"Targets of online requests: TTFT {TTFT_MS:.0f} ms, P99 ITL {ITL_MS:.0f} ms; percent, mean ± standard deviation "
    f"over seeds. Offline throughput counts what has finished by the horizon. `{ALONE}` is the first setting without "
    "offline work.",
    "Stand-ins. Conversations: ShareGPT, at most 8,192 tokens, turns as far as lengths tell; pauses: the gaps between "
    "turns of Mooncake's trace, which include the answer's time. Single requests: first exchanges of ShareGPT. "
    "Documents: LooGLE's 20 of the test data, drawn with replacement as new texts.",
    ERRORS_DRAWN,
    A100_LIMITS,
)


@dataclass(frozen=True, slots=True)
class Scale:
    horizon_s: float
    num_seeds: int
    num_questions: int
    loads: tuple[float, ...]
    settings: tuple[Setting, ...] = SETTINGS


FULL = Scale(horizon_s=1200, num_seeds=3, num_questions=4000, loads=(0.5, 1.0, 1.5))
QUICK = Scale(horizon_s=400, num_seeds=1, num_questions=1500, loads=(1.0,))


@cache
def base_engine() -> SimulatedEngine:
    shape = model_shape("llama-3.1-8b")
    cost = find_cost(shape, "a100")
    return SimulatedEngine(
        model=shape, cost=cost, memory_bytes=40 * 2**30, max_model_len=40_960, draw_errors=True
    )  # fmt: skip


def online(load: float, scale: Scale, seed: int) -> Workload:
    sessions = conversations(load * SESSION_RATE, scale.horizon_s, MAX_SESSION_TOKENS, seed)
    process = ArrivalProcess(load * BURST_RATE, BURST_CV)
    times = process.times(2 * process.num_in(scale.horizon_s) + 100, seed + 1)
    singles = lengths("sharegpt_first").workload(times[times < scale.horizon_s], seed)
    return sessions.merged(singles).with_targets(TTFT_MS, ITL_MS)


def run_one(setting: Setting, load: float, scale: Scale, seed: int, *, is_alone: bool = False) -> Measurement:
    workload = online(load, scale, seed)
    if not is_alone:
        workload = workload.merged(documents().pool(scale.num_questions, seed))
    return measure(simulate(workload, setting.engine(base_engine()), horizon_s=scale.horizon_s, error_seed=seed))


Runs = dict[tuple[float, str], list[Measurement]]  # load, setting


def result_table(load: float, runs: Runs) -> Table:
    columns = [
        Column("setting"), Column("online attainment", "percent"), Column("TTFT", "percent"), Column("ITL", "percent"),
        Column("TPOT", "percent", is_aside=True), Column("goodput/s"), Column("offline requests/s", is_aside=True),
        Column("offline tokens/s", "0"), Column("online prompt from cache", "percent"), Column("offline", "percent"),
        Column("longest wait, first token (s)", "1", is_aside=True),
        Column("between tokens (s)", "1", is_aside=True),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for (of_load, setting), found in runs.items():
        if of_load != load:
            continue
        rows.append([
            setting, spread(found, lambda m: m.attainment), spread(found, lambda m: m.ttft_attainment),
            spread(found, lambda m: m.itl_attainment), spread(found, lambda m: m.tpot_attainment),
            spread(found, lambda m: m.goodput), spread(found, lambda m: m.offline_requests_per_s),
            spread(found, lambda m: m.offline_tokens_per_s), spread(found, lambda m: m.online_cached),
            spread(found, lambda m: m.offline_cached), *longest_waits(found),
        ])  # fmt: skip
    is_dry = any(not run.is_offline_left for (of_load, _), found in runs.items() if of_load == load for run in found)
    note = "The offline pool ran dry in some runs: their throughput is a lower bound." if is_dry else ""
    return Table(f"Load {load:g}", columns, rows, note)


@dataclass(frozen=True, slots=True)
class Margin:
    """hocket against the best of the others, among those that hold the online requests' targets."""

    load: float
    best: str  # empty: none of the others does
    best_offline: float
    hocket_attainment: float
    hocket_offline: float

    @property
    def is_held(self) -> bool:
        return self.hocket_attainment >= LEAST_ATTAINMENT

    @property
    def gain(self) -> float:
        """NaN if there is nothing to compare."""
        return self.hocket_offline / self.best_offline if self.best and self.is_held else math.nan


def margin(load: float, runs: Runs) -> Margin | None:
    """None if hocket was not run."""
    if (load, HOCKET) not in runs:
        return None
    means = {
        name: (spread(found, lambda m: m.attainment).mean, spread(found, lambda m: m.offline_tokens_per_s).mean)
        for (of_load, name), found in runs.items()
        if of_load == load and name != ALONE
    }
    ours = means.pop(HOCKET)
    holding = {name: offline for name, (attained, offline) in means.items() if attained >= LEAST_ATTAINMENT}
    best = max(holding, key=lambda name: holding[name], default="")
    return Margin(load, best, holding.get(best, math.nan), *ours)


def margin_table(margins: Sequence[Margin]) -> Table:
    columns = [
        Column("load"), Column("best other"), Column("its offline tokens/s", "0"), Column("hocket's", "0"),
        Column("gain", "times"), Column("hocket's online attainment", "percent"),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [m.load, m.best or "none", m.best_offline, m.hocket_offline, m.gain, m.hocket_attainment] for m in margins
    ]
    note = f"Among settings that attain {100 * LEAST_ATTAINMENT:.0f} % of the online requests' targets."
    return Table("hocket against the best of the others", columns, rows, note)


def panels(runs: Runs, loads: Sequence[float]) -> list[Panel]:
    names = list(dict.fromkeys(name for _, name in runs if name != ALONE))
    ticks = [f"load {load:g}" for load in loads]
    places = [float(i) for i in range(len(loads))]
    attained = [
        Series(name, places, [100 * spread(runs[load, name], lambda m: m.attainment).mean for load in loads])
        for name in names
    ]
    offline = [
        Series(name, places, [spread(runs[load, name], lambda m: m.offline_tokens_per_s).mean for load in loads])
        for name in names
    ]
    return [
        Panel("online SLO attainment", "", "%", attained, ticks, y_limit=105),
        Panel("offline throughput", "", "tokens/s", offline, ticks),
    ]


def build(scale: Scale, processes: int, num_seeds: int | None) -> Document:
    scale = scale if num_seeds is None else replace(scale, num_seeds=num_seeds)
    document = Document("mixed", "Conversations, bursts and offline work on one engine")
    settings, document.left_out = supported(scale.settings, base_engine())
    seeds = range(scale.num_seeds)
    jobs: dict[tuple[float, str, int], Callable[[], Measurement]] = {}
    for load in scale.loads:
        if settings:
            jobs |= {(load, ALONE, s): partial(run_one, settings[0], load, scale, s, is_alone=True) for s in seeds}
        jobs |= {(load, x.name, s): partial(run_one, x, load, scale, s) for x in settings for s in seeds}
    runs: Runs = {}
    for (load, name, _), found in run_all(jobs, processes, "settings").items():
        runs.setdefault((load, name), []).append(found)
    document.about += [describe(scale), *ABOUT]
    document.cost_models = {base_engine().cost.name}
    document.tables = [setting_table(settings)]
    margins = [m for m in (margin(load, runs) for load in scale.loads) if m is not None]
    if margins:
        document.tables.append(margin_table(margins))
        cases = {
            f"load {load:g}": {
                name: found for (of_load, name), found in runs.items() if of_load == load and name != ALONE
            }
            for load in scale.loads
        }
        document.tables.append(
            gain_table(
                "Offline tokens per second, seed by seed", HOCKET, cases, lambda m: m.offline_tokens_per_s,
                is_share=False, counts=lambda m: m.attainment, least=LEAST_ATTAINMENT,
            )
        )  # fmt: skip
    document.tables += [result_table(load, runs) for load in scale.loads]
    document.panels = panels(runs, scale.loads)
    return document


def describe(scale: Scale) -> str:
    tokens = base_engine().cache_bytes // base_engine().model.kv_bytes_per_token
    return (
        f"Llama-3.1-8B on one A100 of 40 GB: room for K and V of {tokens:,} tokens. {scale.horizon_s / 60:.0f} "
        f"simulated minutes, {scale.num_seeds} seeds, {scale.num_questions:,} offline questions."
    )


if __name__ == "__main__":
    sys.exit(run_study(__doc__ or "", FULL, QUICK, build))
