"""The scheduling core under contention, no model: microseconds per schedule() and commit() with n live requests.

    python -m bench.run.parts.core_contention [--steps 2000] [--policy hocket] [--json]

Of n live requests six in ten are online with targets, the others offline over shared documents; memory holds about
three quarters of what they want, so that some run, some wait, and every step decides anew. Whoever ends is replaced
(outside the clock). Goals at 1600: 150 us at the median and 400 us at p99, both calls together; at 256: 30 us.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass

import numpy as np

from bench.lib.table import render
from bench.run.parts.algorithms import model
from schedcore._core import AddStatus, Estimates, Scheduler, SchedulerConfig

NUM_LIVE = (64, 256, 400, 1600)
NUM_LAYERS = 24
MEMORY_SHARE = 0.75
MEAN_PROMPT, MEAN_OUTPUT = 300, 150
WARMUP_STEPS = 300
STEP_S = 0.03
NUM_DOCUMENTS = 20


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds per step."""

    num_live: int
    schedule_p50: float
    commit_p50: float
    both_p50: float
    both_p99: float
    mean_running: float
    mean_waiting: float
    mean_tokens: float  # per step
    preemptions_per_step: float


class Load:
    """Keeps `num_live` requests in the scheduler."""

    def __init__(self, num_live: int, policy: str) -> None:
        self.num_live = num_live
        self.rng = np.random.default_rng(0)
        self.documents = [self.rng.integers(0, 32000, 512, dtype=np.int32) for _ in range(NUM_DOCUMENTS)]
        tokens = int(num_live * MEMORY_SHARE * (MEAN_PROMPT + MEAN_OUTPUT / 2))
        units_per_block = 2 * NUM_LAYERS // 4
        config = SchedulerConfig(
            num_units=tokens // 16 * units_per_block,
            num_layers=NUM_LAYERS,
            max_num_seqs=num_live,
            max_num_waiting=num_live,
            max_model_len=4096,
            policy=policy,
        )
        self.scheduler = Scheduler(config, Estimates(latency=model()))
        self.next_id = 0

    def refill(self, now: float) -> None:
        stats = self.scheduler.stats()
        for _ in range(self.num_live - sum(stats["num_running"]) - sum(stats["num_waiting"])):
            self.add(now)

    def add(self, now: float) -> None:
        rng = self.rng
        is_offline = rng.random() < 0.4
        length = int(rng.integers(32, 2 * MEAN_PROMPT - 32))
        prompt = rng.integers(0, 32000, length, dtype=np.int32)
        if is_offline:
            prompt = np.concatenate([self.documents[rng.integers(NUM_DOCUMENTS)], prompt[:64]])
        status = self.scheduler.add_request(
            self.next_id,
            prompt,
            max_tokens=int(rng.geometric(1 / MEAN_OUTPUT)),
            request_class=int(is_offline),
            arrival_time=now,
            ttft_target=None if is_offline else 2.0,
            itl_target=None if is_offline else 0.25,
        )
        assert status is AddStatus.OK
        self.next_id += 1


def measure(num_live: int, num_steps: int, policy: str) -> Timing:
    load = Load(num_live, policy)
    scheduler, clock = load.scheduler, time.perf_counter_ns
    laps = np.empty((num_steps, 2))
    shape = np.empty((num_steps, 3))
    now, num_preempted = 0.0, 0
    for i in range(-WARMUP_STEPS, num_steps):
        load.refill(now)
        begin = clock()
        plan = scheduler.schedule(now)
        scheduled = clock()
        sampled = np.ones(len(plan.sample_seqs), np.int32)
        now += STEP_S
        committing = clock()
        scheduler.commit(sampled, now)
        committed = clock()
        if i >= 0:
            laps[i] = (scheduled - begin) / 1000, (committed - committing) / 1000
            stats = scheduler.stats()
            shape[i] = sum(stats["num_running"]), sum(stats["num_waiting"]), plan.num_tokens
            num_preempted += len(plan.preempted_ids)
    both = laps.sum(axis=1)
    schedule_p50, commit_p50 = np.median(laps, axis=0).tolist()
    return Timing(
        num_live,
        schedule_p50,
        commit_p50,
        *np.percentile(both, (50, 99)).tolist(),
        *shape.mean(axis=0).tolist(),
        num_preempted / num_steps,
    )


def table(timings: list[Timing], policy: str) -> str:
    header = ["live", "schedule p50", "commit p50", "both p50", "both p99", "running", "waiting", "tokens", "preempted"]
    rows = [[f"{value:.4g}" for value in asdict(t).values()] for t in timings]
    return f"Core under contention, policy {policy}, microseconds per step\n" + render(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--policy", default="hocket")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    timings = [measure(n, args.steps, args.policy) for n in NUM_LIVE]
    print(json.dumps([asdict(t) for t in timings]) if args.json else table(timings, args.policy))


if __name__ == "__main__":
    main()
