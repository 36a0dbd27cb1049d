"""Histories for schedulers: the same calls for a plain one and for one that records them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from schedcore._core import Scheduler
from schedcore.record.decision_record import Call, Header, RecordReader, RecordWriter
from schedcore.record.recipe import Recipe
from schedcore.record.recording_scheduler import RecordingScheduler, field_names

VOCAB_SIZE = 3  # prompts share prefixes

COEFFICIENTS = Recipe(
    "LatencyCoefficients", {"step_base": 0.1 / 3, "prefill_token": 1e-3 / 7, "decode_seq": 1e-3 / 3, "overlap": 1 / 3}
)
COSTS = Recipe(
    "StepCosts",
    {
        "form": "roofline",
        "flops_per_token": 1e9,
        "flops_per_pair": 1e5,
        "flops_per_second": 1e14,
        "bytes_per_second": 1e12,
        "kv_bytes_per_token": 1e4,
        "weight_bytes": 1e9,
    },
)
ESTIMATES = Recipe(
    "Estimates",
    {
        "latency": Recipe("LatencyModel", {"form": "corrected", "coefficients": COEFFICIENTS}),
        "costs": COSTS,
        "host_bytes_per_second": 1e9,
        "unit_bytes": 1e4,
    },
)


def scheduler_recipe(**config: Any) -> Recipe:
    small = {"num_units": 40, "num_layers": 2, "layers_per_unit": 2, "block_size": 2, "max_model_len": 32}
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 12, "max_num_waiting": 6}
    made = Recipe("SchedulerConfig", {**small, **limits, "refine_latency": True, **config})
    return Recipe("Scheduler", {"config": made, "estimates": ESTIMATES})


def live(scheduler: Scheduler, seed: int, num_turns: int = 60) -> list[Any]:
    """Adds, aborts, steps and resets at random, also while a plan is open. Everything that was decided."""
    rng = random.Random(seed)
    now, next_id, decisions = rng.random(), 1, []

    def world() -> None:
        nonlocal next_id
        if rng.random() < 0.5:
            decisions.append(add(scheduler, rng, next_id, now))
            next_id += 1
        if rng.random() < 0.2:
            decisions.append(scheduler.abort(rng.randint(0, next_id)))
        if rng.random() < 0.05:
            decisions.append(scheduler.reset_prefix_cache())

    for _ in range(num_turns):
        world()
        if next_id % 3 == 0:
            decisions.append(scheduler.force(rng.randint(1, next_id), [rng.randrange(VOCAB_SIZE) for _ in range(3)]))
        now += rng.expovariate(10)
        plan = scheduler.schedule(now)
        decisions.append(contents(plan))
        if plan:
            sampled = np.array([rng.randrange(VOCAB_SIZE) for _ in plan.sample_seqs], np.int32)
            world()
            now += rng.expovariate(10)
            decisions.append(contents(scheduler.commit(sampled, now)))
        scheduler.check_invariants()
    return decisions


def add(scheduler: Scheduler, rng: random.Random, request_id: int, now: float) -> str:
    request_id = request_id if rng.random() < 0.95 else 1  # often live already
    prompt: Any = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(0, 10))]
    if rng.random() < 0.05:
        prompt.append(rng.choice([-1, 2**31, 2**70]))
    elif rng.random() < 0.3:
        prompt = np.array(prompt, np.int32)
    options = {
        "stop_token_ids": rng.choice([(), (), [2], (2, 2**80), np.array([0], np.int32)]),
        "request_class": rng.randrange(3),
        "priority": rng.randint(-2, 2),
        "arrival_time": now - rng.random(),
        "ttft_target": rng.choice([None, rng.random()]),
        "tpot_target": rng.choice([None, rng.random() / 10]),
        "cache_salt": rng.choice(["", "", "other", "übrig"]),
    }
    chosen = {name: value for name, value in options.items() if rng.random() < 0.7}
    return scheduler.add_request(request_id, prompt, max_tokens=rng.randint(0, 20), **chosen).name


def contents(result: Any) -> dict[str, Any]:
    return {name: np.array(getattr(result, name)).tolist() for name in field_names(type(result))}


def write_record(path: Path, seed: int = 0, num_turns: int = 60, **config: Any) -> Path:
    scheduler = RecordingScheduler(scheduler_recipe(**config), path)
    live(scheduler, seed, num_turns)
    scheduler.close()
    return path


def read_calls(path: Path) -> list[Call]:
    with RecordReader(path) as reader:
        return list(reader.calls())


def rewrite(
    source: Path, target: Path, change: Callable[[list[Call]], Iterable[Call]], header: Header | None = None
) -> Path:
    """A record with other calls, or with another header."""
    with RecordReader(source) as reader:
        old_header, calls = reader.header, list(reader.calls())
    writer = RecordWriter(target, header or old_header)
    for call in change(calls):
        writer.append(call)
    writer.close()
    return target
