"""The scheduling core alone, no model: microseconds per schedule() and commit() with n requests decoding.

    python -m bench.run.parts.core [--steps 1000] [--policy fcfs] [--layers 24] [--json]

`views` is what reading every array of the plan costs afterwards. vLLM's column is its scheduler measured the same way
(median, all decoding, `schedule()` + `update_from_output()`) on a 2-core EPYC; compare orders of magnitude.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from schedcore._core import AddStatus, BatchPlan, Scheduler, SchedulerConfig

VLLM_SCHEDULE_US = {1: 18, 8: 59, 32: 191, 100: 520, 400: 2050, 1600: 8300}
VLLM_UPDATE_US = {1: 8, 8: 27, 32: 83, 100: 230, 400: 940, 1600: 4400}
NUM_RUNNING = (1, 8, 32, 100, 256, 400, 1600)
PROMPT_TOKENS = 64
WARMUP_STEPS = 64
PLAN_SCALARS = {"step_id", "num_tokens", "num_seqs", "num_saves", "num_step_loads"}
PLAN_ARRAYS = [name for name in vars(BatchPlan) if not name.startswith("_") and name not in PLAN_SCALARS]


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds."""

    num_running: int
    schedule_p50: float
    schedule_p99: float
    commit_p50: float
    commit_p99: float
    views_p50: float


def decoding_scheduler(num_running: int, num_steps: int, policy: str, num_layers: int) -> Scheduler:
    """All requests admitted, their prompts computed, with memory for `num_steps` more tokens each."""
    max_model_len = PROMPT_TOKENS + num_running + WARMUP_STEPS + num_steps + 64
    shape = partial(
        SchedulerConfig, num_layers=num_layers, max_num_seqs=num_running, max_model_len=max_model_len, policy=policy
    )
    one = shape(num_units=2 * num_layers)
    scheduler = Scheduler(shape(num_units=num_running * (one.max_blocks_per_seq + 2) * one.units_per_block))
    rng = np.random.default_rng(0)
    for request_id in range(num_running):
        prompt = rng.integers(0, 32000, PROMPT_TOKENS, dtype=np.int32)
        assert scheduler.add_request(request_id, prompt, max_tokens=max_model_len) is AddStatus.OK
    while True:
        plan = scheduler.schedule(0.0)
        is_decoding = plan.num_seqs == plan.num_tokens == num_running
        scheduler.commit(np.ones(len(plan.sample_seqs), np.int32), 0.0)
        if is_decoding:
            return scheduler


def read_views(plan: BatchPlan) -> int:
    return sum(len(getattr(plan, name)) for name in PLAN_ARRAYS)


def measure(num_running: int, num_steps: int, policy: str, num_layers: int) -> Timing:
    scheduler = decoding_scheduler(num_running, num_steps, policy, num_layers)
    sampled = np.ones(num_running, np.int32)
    clock = time.perf_counter_ns
    laps = np.empty((WARMUP_STEPS + num_steps, 4), np.int64)
    for lap in laps:
        lap[0] = clock()
        plan = scheduler.schedule(0.0)
        lap[1] = clock()
        read_views(plan)
        lap[2] = clock()
        scheduler.commit(sampled, 0.0)
        lap[3] = clock()
    assert plan.num_seqs == num_running
    schedule, views, commit = np.diff(laps[WARMUP_STEPS:], axis=1).T / 1000
    (s50, s99), (c50, c99), (v50, _) = (np.percentile(part, (50, 99)).tolist() for part in (schedule, commit, views))
    return Timing(num_running, s50, s99, c50, c99, v50)


def table(timings: list[Timing]) -> str:
    lines = [
        "Core, microseconds per step, all decoding",
        f"{'':>8} | {'schedule':^15} | {'commit':^15} | {'views':>7} | {'both':>7} | {'vLLM':^15} |",
        f"{'running':>8}{' |     p50     p99' * 2} | {'p50':>7} | {'p50':>7} | {'schedule':>8} {'update':>6} | ratio",
    ]
    for t in timings:
        both = t.schedule_p50 + t.commit_p50
        line = f"{t.num_running:>8} | {t.schedule_p50:7.1f} {t.schedule_p99:7.1f}"
        line += f" | {t.commit_p50:7.1f} {t.commit_p99:7.1f} | {t.views_p50:7.1f} | {both:7.1f}"
        if t.num_running in VLLM_SCHEDULE_US:
            theirs = VLLM_SCHEDULE_US[t.num_running], VLLM_UPDATE_US[t.num_running]
            line += f" | {theirs[0]:>8} {theirs[1]:>6} | {sum(theirs) / both:4.0f}x"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--policy", default="fcfs")
    parser.add_argument("--layers", type=int, default=24, help="layers of the model; 4 layers are one group of units")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    timings = [measure(n, args.steps, args.policy, args.layers) for n in NUM_RUNNING]
    print(json.dumps([asdict(t) for t in timings]) if args.json else table(timings))


if __name__ == "__main__":
    main()
