"""Where each microsecond of a decode step goes, in the engine itself, without gateway or sockets.

    python -m bench.run.random_model 15m 100m 0.5b
    python -m bench.run.parts.step_profile models/random-15m models/random-100m models/random-0.5b
                                          [--batch 1 64] [--steps 300]

Requests of --prompt tokens decode greedily until --steps steps were timed, all of them in each. A stage's time is its
mean over the fastest tenth of the steps: others who use the machine only make steps slower. limit: the weights that a
step reads, over the read bandwidth of memory measured in the same run; a model that fits the processor's caches may be
faster.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.lib.model.weight_bytes import streamed_weight_bytes
from bench.lib.table import render
from bench.run.parts.machine_limits import read_bandwidth
from schedcore.api.config import EngineConfig
from schedcore.api.types import EngineRequest, SamplingParams
from worker import ops
from worker.forward.forward import NativeForward
from worker.ops.decoder_step import DecoderStep
from worker.process.engine import Engine
from worker.process.engine_process import build_engine

GATEWAY = b"profile"
FASTEST_SHARE = 0.1
NATIVE = tuple(f"native: {stage}" for stage in DecoderStep.STAGES)
STAGES = ("schedule", *NATIVE, "inputs, sampling", "commit", "deliver", "other")


@dataclass(frozen=True)
class StepProfile:
    model: str
    batch: int
    stage_us: dict[str, float]  # by STAGES
    limit_us: float  # of reading the weights

    @property
    def step_us(self) -> float:
        return sum(self.stage_us.values())

    def column(self) -> list[str]:
        stages = [f"{self.stage_us[stage]:.1f}" for stage in STAGES]
        return [*stages, f"{self.step_us:.0f}", f"{self.limit_us:.0f}", f"{self.limit_us / self.step_us:.0%}"]


class Stopwatch:
    """Seconds spent in each of the named calls since the last take()."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def time(self, owner: Any, method: str, name: str) -> None:
        """Replaces owner.method by one that is timed."""
        setattr(owner, method, self._timed(getattr(owner, method), name))

    def take(self) -> dict[str, float]:
        taken, self._seconds = self._seconds, {}
        return taken

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            begin = time.perf_counter()
            result = function(*args)
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begin
            return result

        return timed


class TimedEngine:
    """An engine whose parts are timed. Reaches into them: there is no other way to see a step from inside."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self._watch = engine, Stopwatch()
        runner: Any = engine._executor
        self._native = runner._forward.step if isinstance(runner._forward, NativeForward) else None
        self._watch.time(engine, "step", "step")
        self._watch.time(engine, "_deliver", "deliver")
        self._watch.time(runner, "execute", "execute")
        self._watch.time(runner._forward, "greedy_tokens", "forward")

    def step(self) -> dict[str, float]:
        """Runs one; seconds by STAGES."""
        before = self.engine.stats()
        self._watch.take()
        self.engine.step()
        spent, after = self._watch.take(), self.engine.stats()
        native = self._native_seconds(spent["forward"])
        stages = {
            "schedule": after.schedule_seconds - before.schedule_seconds,
            **native,
            "inputs, sampling": spent["execute"] - sum(native.values()),
            "commit": after.commit_seconds - before.commit_seconds,
            "deliver": spent["deliver"],
        }
        return {**stages, "other": spent["step"] - sum(stages.values())}

    def _native_seconds(self, forward: float) -> dict[str, float]:
        """A model without native step: all in the first stage."""
        if self._native is None:
            return dict.fromkeys(NATIVE, 0.0) | {NATIVE[0]: forward}
        return dict(zip(NATIVE, self._native.take_stage_seconds().values(), strict=True))


def profile(folder: Path, *, batch: int, prompt: int, num_steps: int, threads: int, bandwidth: float) -> StepProfile:
    # Those that begin while others are still computed must not end before the last step.
    longest = 2 * num_steps + 16 * batch
    config = EngineConfig(
        model=str(folder),
        device="cpu",
        num_threads=threads,
        max_num_seqs=batch,
        max_num_batched_tokens=2048,
        max_model_len=prompt + longest + 16,
    )
    engine = build_engine(config, time.monotonic())[0]
    timed = TimedEngine(engine)
    rng = np.random.default_rng(0)
    for i in range(1, batch + 1):
        tokens: list[int] = rng.integers(3, 200, prompt).tolist()
        request = EngineRequest(i, tokens, longest, SamplingParams(temperature=0.0))
        engine.add(GATEWAY, request)
    while engine.stats().num_prompt_tokens < batch * prompt:
        timed.step()
        engine.take_deltas()
    gc.collect()
    gc.freeze()  # as in an engine
    steps = [_step(timed) for _ in range(num_steps)]
    if (num_left := sum(engine.stats().num_running)) != batch:
        sys.exit(f"{folder.name}: only {num_left} of {batch} requests ran to the end: take more --steps")
    return StepProfile(folder.name, batch, fastest(steps), streamed_weight_bytes(folder) / bandwidth * 1e6)


def _step(timed: TimedEngine) -> dict[str, float]:
    stages = timed.step()
    timed.engine.take_deltas()
    return stages


def fastest(steps: list[dict[str, float]]) -> dict[str, float]:
    """Mean microseconds by stage over the fastest steps."""
    ranked = sorted(steps, key=lambda stages: sum(stages.values()))
    chosen = ranked[: max(1, round(FASTEST_SHARE * len(ranked)))]
    return {stage: 1e6 * sum(stages[stage] for stages in chosen) / len(chosen) for stage in STAGES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, help="checkpoint folders")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 64], help="requests that decode together")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of context before the first timed step")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=ops.DEFAULT_THREADS)
    args = parser.parse_args()
    bandwidth = read_bandwidth(args.threads)
    profiles = [
        profile(
            folder, batch=batch, prompt=args.prompt, num_steps=args.steps, threads=args.threads, bandwidth=bandwidth
        )
        for folder in args.models
        for batch in args.batch
    ]
    print(f"{ops.num_threads()} threads, memory read at {bandwidth / 1e9:.0f} GB/s; microseconds\n")
    header = ["stage", *(f"{p.model} x {p.batch}" for p in profiles)]
    names = [*STAGES, "step", "limit", "limit / step"]
    print(render(header, [[name, *cells] for name, *cells in zip(names, *(p.column() for p in profiles), strict=True)]))


if __name__ == "__main__":
    main()
