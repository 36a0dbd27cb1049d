"""The scheduling core under contention, no model: microseconds per schedule() and commit() with n live requests.

    python -m bench.run.parts.core_contention [--steps 2000] [--policy hocket] [--live N ...] [--everything] [--json]

Of n live requests six in ten are online with targets, the others offline over shared documents; memory holds about
three quarters of what they want, so that some run, some wait, and every step decides anew. Whoever ends is replaced
(outside the clock). Goals at 1600: 150 us at the median and 400 us at p99, both calls together; at 256: 30 us.

`--everything` adds what `--cache-kinds auto --partial-caching` does and what a server has anyway: hidden states, the
b/r solver, refined step times, tenants, sessions with advisories, a host tier and a disk, whose moves end before the
next step.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench.lib.table import render
from bench.run.parts.algorithms import model
from schedcore._core import AddStatus, AdvisoryEvent, Estimates, Scheduler, SchedulerConfig

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

    def __init__(self, num_live: int, policy: str, has_everything: bool) -> None:
        self.num_live = num_live
        self.has_everything = has_everything
        self.rng = np.random.default_rng(0)
        self.documents = [self.rng.integers(0, 32000, 512, dtype=np.int32) for _ in range(NUM_DOCUMENTS)]
        tokens = int(num_live * MEMORY_SHARE * (MEAN_PROMPT + MEAN_OUTPUT / 2))
        units_per_block = 2 * NUM_LAYERS // 4
        everything: dict[str, Any] = {
            "hidden_units_per_group": 1,
            "enable_partial_caching": True,
            "refine_latency": True,
            "num_host_blocks": tokens // 16,
            "enable_disk": True,
            "save_sessions_only": True,
            "max_num_sessions": num_live,
            "max_wait_ms": 20_000,
            "starving_turn_ms": 2000,
            "max_decode_step_ms": 0,
        }
        config = SchedulerConfig(
            num_units=tokens // 16 * units_per_block,
            num_layers=NUM_LAYERS,
            max_num_seqs=num_live,
            max_num_waiting=num_live,
            max_model_len=4096,
            policy=policy,
            **(everything if has_everything else {}),
        )
        estimates = Estimates(latency=model())
        if has_everything:
            estimates = Estimates(
                latency=model(), host_bytes_per_second=2e10, disk_bytes_per_second=2e9, unit_bytes=65_536
            )
        self.scheduler = Scheduler(config, estimates)
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
            tenant=f"t{rng.integers(4)}" if self.has_everything else "",
            session_id=f"s{rng.integers(self.num_live)}" if self.has_everything and rng.random() < 0.25 else "",
        )
        assert status is AddStatus.OK
        self.next_id += 1

    def advise(self, now: float) -> None:
        """Somebody types."""
        if self.has_everything:
            self.scheduler.advise(f"s{self.rng.integers(self.num_live)}", AdvisoryEvent.TYPING, now, lease_seconds=30.0)


def measure(num_live: int, num_steps: int, policy: str, has_everything: bool = False) -> Timing:
    load = Load(num_live, policy, has_everything)
    scheduler, clock = load.scheduler, time.perf_counter_ns
    laps = np.empty((num_steps, 2))
    shape = np.empty((num_steps, 3))
    now, num_preempted = 0.0, 0
    for i in range(-WARMUP_STEPS, num_steps):
        load.refill(now)
        load.advise(now)
        begin = clock()
        plan = scheduler.schedule(now)
        scheduled = clock()
        sampled, moves = np.ones(len(plan.sample_seqs), np.int32), plan.move_ids.copy()
        now += STEP_S
        committing = clock()
        scheduler.commit(sampled, now)
        committed = clock()
        scheduler.complete_moves(moves)
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
    parser.add_argument("--live", type=int, nargs="+", default=NUM_LIVE, metavar="N")
    parser.add_argument("--everything", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    timings = [measure(n, args.steps, args.policy, args.everything) for n in args.live]
    print(json.dumps([asdict(t) for t in timings]) if args.json else table(timings, args.policy))


if __name__ == "__main__":
    main()
