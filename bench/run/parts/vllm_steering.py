"""Our share of a step inside the vLLM engine: its own scheduler, no model, n requests decoding, with and without us.

    build/vllm-env/bin/python -m bench.run.parts.vllm_steering [--running 256 1600] [--steps 300] [--cpu-time] [--json]

Microseconds per step. `share`: what vllm_engine's hooks take, by their own count: the least, which is what they take
where nobody else computes, median and 99th percentile. `vLLM`: the mean of its schedule() and update_from_output()
without us, `steered`: with us, hooks included. A quarter of the requests are offline work beside online ones that have
a target; `resting`: how many are given no token in a step. `told`: steps before which who runs had to be told.
--cpu-time: by the clock of the thread, where others compute on the same cores.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from schedcore._core import RequestClass
from vllm_engine.first_estimate import BEFORE_ANY, estimates
from vllm_engine.make_advisor import make_advisor
from vllm_engine.scheduler import SteeredScheduler
from vllm_engine.steering import EXTRA, Steering

MODEL = Path(__file__).resolve().parents[3] / "worker/demo_model"
PROMPT_TOKENS, BLOCK_SIZE, WARMUP = 64, 16, 50


class ManualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_scheduler(num_running: int, num_steps: int) -> SteeredScheduler:
    length = PROMPT_TOKENS + num_steps + 2 * WARMUP + 100
    arguments = EngineArgs(
        model=str(MODEL),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=num_running,
        max_num_batched_tokens=8192,
        max_model_len=min(2048, length),
        block_size=BLOCK_SIZE,
    )
    config = arguments.create_engine_config()
    num_blocks = num_running * (length // BLOCK_SIZE + 2)
    config.cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=64, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    return SteeredScheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
    )


def request(number: int, num_steps: int) -> Request:
    is_offline = number % 4 == 0
    extra: dict[str, Any] = {"class": int(RequestClass.OFFLINE if is_offline else RequestClass.ONLINE)}
    if not is_offline:
        extra["itl_ms"] = 100.0
    params = SamplingParams(max_tokens=num_steps + 2 * WARMUP, ignore_eos=True, extra_args={EXTRA: extra})
    params.update_from_generation_config({}, None)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    return Request(str(number), [number % 1000 + 1] * PROMPT_TOKENS, params, None, block_hasher=hasher)


def run(num_running: int, num_steps: int, policy: str | None) -> dict[str, Any]:
    scheduler, clock = make_scheduler(num_running, num_steps), ManualClock()
    steering = None
    if policy is not None:
        advisor = make_advisor(scheduler, {"policy": policy}, estimates(BEFORE_ANY))
        steering = Steering(advisor, clock, scheduler.is_exact)
        scheduler.steer(steering)
    for number in range(num_running):
        scheduler.add_request(request(number, num_steps))
    totals, shares, resting = [], [], []
    for step in range(10 * WARMUP + num_steps):
        before, start = scheduler.steering_seconds, time.perf_counter()
        output = scheduler.schedule()
        middle = time.perf_counter()
        ran = runner_output(output, scheduler)
        clock.now += 0.02
        again = time.perf_counter()
        scheduler.update_from_output(output, ran)
        end = time.perf_counter()
        is_steady = len(scheduler.running) == num_running and step >= WARMUP
        if is_steady and output.total_num_scheduled_tokens <= num_running:
            totals.append(middle - start + end - again)
            shares.append(scheduler.steering_seconds - before)
            resting.append(num_running - len(output.num_scheduled_tokens))
        if len(totals) == num_steps or scheduler.get_num_unfinished_requests() == 0:
            break
    told = {} if steering is None else {"told": steering.num_told}
    return {
        "total": 1e6 * sum(totals) / max(1, len(totals)),
        "share": quantiles(shares),
        "resting": sum(resting) / max(1, len(resting)),
    } | told


def runner_output(output: Any, scheduler: Any) -> ModelRunnerOutput:
    """One token for each whose known tokens are all computed."""
    names = list(output.num_scheduled_tokens)
    requests = scheduler.requests
    sampled = [[7] if requests[i].num_computed_tokens >= requests[i].num_tokens else [] for i in names]
    return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)


def quantiles(seconds: list[float]) -> tuple[float, float, float]:
    ordered = sorted(seconds) or [0.0]
    return tuple(round(1e6 * ordered[int(share * (len(ordered) - 1))], 1) for share in (0.0, 0.5, 0.99))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, nargs="+", default=[32, 256, 1600])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--policy", default="hocket")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cpu-time", action="store_true", help="clocks stand still while others have the processor")
    arguments = parser.parse_args()
    if arguments.cpu_time:
        time.perf_counter = time.thread_time  # of the scheduler's hooks, too
    init_none_hash(sha256)
    print(" running  share least      p50      p99       vLLM  steered  resting  told")
    for num_running in arguments.running:
        alone, steered = (run(num_running, arguments.steps, policy) for policy in (None, arguments.policy))
        if arguments.json:
            print(json.dumps({"running": num_running, "alone": alone, "steered": steered}))
            continue
        least, p50, p99 = steered["share"]
        vllm, ours, told = alone["total"], steered["total"], steered["told"]
        row = f"{num_running:8} {least:12.1f} {p50:8.1f} {p99:8.1f} {vllm:10.0f} {ours:8.0f}"
        print(f"{row} {steered['resting']:8.1f} {told:5}")


if __name__ == "__main__":
    main()
