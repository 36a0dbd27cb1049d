"""So many clients, each of whom sends its next request when the one before has ended, on two cores and with no flag.

    python -m bench.studies.closed_loop.crowds [--quick] [--seeds N] [--processes 2] [--json FILE]
        [--output docs/results]

Where decodes alone nearly fill what readers are promised, it shows who gives way to whom: readers or first tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from bench.studies.document import Cell, Column, Document, Table
from bench.studies.jobs import run_all
from bench.studies.measurement import token_gaps
from bench.studies.settings import SERVED, Setting, setting_table, supported
from bench.studies.study import run_study
from schedcore.simulation.cost_model import profile_cost, read_profile
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.simulator import simulate
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import NO_REQUEST, Workload, make_workload

DATA = Path(__file__).parents[1] / "data"
PROFILES = ("random-100m_avx2", "random-0.5b_avx2")
FIRST_ROUNDS = 4  # that are not counted: everybody came at once

SETTINGS = (
    Setting("hocket", "hocket", {}, "no flag"),
    Setting("fcfs", "fcfs", {}, "first come, first served; chunks beside decodes"),
)

ABOUT = (
    "The step times are those that `hocket calibrate` found for two random models in bfloat16 on two cores of an AMD "
    "Zen 3 (AVX2), with the errors that it measured. The scheduler believes them at first and learns from what it "
    "measures, as it does live. Memory is never short.",
    "Lengths are drawn uniformly within a quarter of those named: equal ones would keep everybody in step for good.",
    "Of every client the first rounds are not counted, as all of them came at once.",
)


@dataclass(frozen=True, slots=True)
class Crowd:
    num_clients: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Scale:
    crowds: tuple[Crowd, ...]
    num_rounds: int
    num_seeds: int


EQUAL = tuple(Crowd(n, 128, 128) for n in (8, 32, 64, 96))
FULL = Scale((*EQUAL, Crowd(64, 512, 64), Crowd(64, 64, 512)), num_rounds=16, num_seeds=4)
QUICK = Scale((Crowd(64, 128, 128),), num_rounds=FIRST_ROUNDS + 2, num_seeds=2)


@cache
def engine(profile: str) -> SimulatedEngine:
    # The shape only says how much memory a token takes, of which there is enough.
    cost = profile_cost(profile, read_profile(DATA / f"{profile}.json"))
    return SimulatedEngine(
        model=model_shape("llama-3.1-8b"), cost=cost, memory_bytes=80 * 2**30, max_model_len=1024, draw_errors=True,
        options=SERVED,
    )  # fmt: skip


def workload(crowd: Crowd, num_rounds: int, seed: int) -> Workload:
    """The next request of a client follows its last one at once. Lengths are within a quarter of the crowd's: equal
    ones would keep everybody in step for good."""
    num = crowd.num_clients * num_rounds
    ahead = np.full(crowd.num_clients, NO_REQUEST)
    follows = np.concatenate([ahead, np.arange(num - crowd.num_clients)])
    random = np.random.default_rng(seed)
    prompts, outputs = (
        np.rint(length * random.uniform(0.75, 1.25, num)).astype(np.int32)
        for length in (crowd.prompt_tokens, crowd.output_tokens)
    )
    return make_workload(np.zeros(num), Prompts.unrelated(prompts), outputs, follows=follows)


@dataclass(frozen=True, slots=True)
class Run:
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_ms: float
    itl_p99_ms: float
    longest_gap_ms: float


def run_one(profile: str, setting: Setting, crowd: Crowd, num_rounds: int, seed: int) -> Run:
    arrivals = workload(crowd, num_rounds, seed)
    result = simulate(arrivals, setting.engine(engine(profile)), error_seed=seed, keep_token_times=True)
    counted = np.arange(len(arrivals)) >= FIRST_ROUNDS * crowd.num_clients
    records = result.records
    ttft_s = (records.first_token_s - records.arrival_s)[counted]
    request, gap_s = token_gaps(result)
    gaps_ms = 1000 * gap_s[counted[request]]
    begin_s = float(records.arrival_s[counted].min())
    return Run(
        tokens_per_s=float((result.token_time_s >= begin_s).sum()) / (result.end_s - begin_s),
        ttft_p50_s=float(np.quantile(ttft_s, 0.5)),
        ttft_p99_s=float(np.quantile(ttft_s, 0.99)),
        itl_p50_ms=float(np.quantile(gaps_ms, 0.5)),
        itl_p99_ms=float(np.quantile(gaps_ms, 0.99)),
        longest_gap_ms=float(gaps_ms.max()),
    )


def crowd_table(profile: str, runs: dict[tuple[Crowd, str], list[Run]]) -> Table:
    columns = [
        Column("clients"), Column("prompt / answer"), Column("setting"), Column("tokens/s", "1"),
        Column("TTFT p50 / p99 (s)"), Column("ITL p50 / p99 (ms)"), Column("longest gap (ms)", "0"),
        Column("TTFT p50, per seed (s)"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for (crowd, setting), found in runs.items():
        mean = {name: float(np.mean([getattr(run, name) for run in found])) for name in Run.__slots__}
        rows.append([
            f"{crowd.num_clients}", f"{crowd.prompt_tokens} / {crowd.output_tokens}", setting, mean["tokens_per_s"],
            f"{mean['ttft_p50_s']:.2f} / {mean['ttft_p99_s']:.2f}",
            f"{mean['itl_p50_ms']:.0f} / {mean['itl_p99_ms']:.0f}",
            max(run.longest_gap_ms for run in found), " ".join(f"{run.ttft_p50_s:.2f}" for run in found),
        ])  # fmt: skip
    promised_ms = 1000 * engine(profile).estimates().itl_seconds(int(SERVED["max_num_seqs"]))
    note = f"Readers without a target are promised {promised_ms:.0f} ms between two tokens, as calibrated."
    return Table(profile, columns, rows, note)


def build(scale: Scale, processes: int, num_seeds: int | None) -> Document:
    scale = scale if num_seeds is None else replace(scale, num_seeds=num_seeds)
    document = Document("closed_loop", "So many clients in a closed loop, with no flag")
    settings, document.left_out = supported(SETTINGS, engine(PROFILES[0]))
    jobs = {
        (profile, crowd, s.name, seed): partial(run_one, profile, s, crowd, scale.num_rounds, seed)
        for profile in PROFILES
        for crowd in scale.crowds
        for s in settings
        for seed in range(scale.num_seeds)
    }
    done = run_all(jobs, processes, "closed loops")
    document.about += [f"{scale.num_rounds} requests per client, {scale.num_seeds} seeds of errors.", *ABOUT]
    document.cost_models = set(PROFILES)
    document.tables = [setting_table(settings)]
    for profile in PROFILES:
        runs = {
            (crowd, s.name): [done[profile, crowd, s.name, seed] for seed in range(scale.num_seeds)]
            for crowd in scale.crowds
            for s in settings
        }
        document.tables.append(crowd_table(profile, runs))
    return document


def main(arguments: Sequence[str] | None = None) -> int:
    return run_study(__doc__ or "", FULL, QUICK, build, arguments)


if __name__ == "__main__":
    sys.exit(main())
