"""What steering does to the rate that keeps its targets, by counted steps: vLLM's own scheduler, no model, no clock.

    build/vllm-env/bin/python -m bench.run.vllm.counted
    build/vllm-env/bin/python -m bench.run.vllm.counted --input-len 1024 --ttft-ms 2000 --rates 0.5 1 1.5 2 2.5 3

The study of bench/run/vllm/goodput.py where only decisions count: a step takes --base-ms, --decode-ms per decode and
--prompt-ms per token of a prompt, times e^N(0, --noise), and its requests' tokens come at its end. The advisor begins
with what vllm_engine/first_estimate.py would have measured, and learns. So a busy machine changes nothing, and nothing
is said of what runs beside the steps. --stops: the process is stopped for 5 s within these steps, arrivals with it.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from bench.lib.table import render
from bench.run.parts.vllm_steering import MODEL, ManualClock, runner_output
from gateway.cli.options import LEAST_MAX_TTFT_MS, MAX_TTFT_TARGETS
from schedcore.latency.latency_profile import LatencyCoefficients
from vllm_engine.first_estimate import estimates
from vllm_engine.make_advisor import make_advisor
from vllm_engine.scheduler import SteeredScheduler
from vllm_engine.steering import EXTRA, Steering

STOCK = "stock"
BLOCK_SIZE, CACHE_TOKENS, MAX_MODEL_LEN = 32, 200_000, 2048
STOP_SECONDS, NAP_SECONDS = 5.0, 0.001
TOLD = 0.8  # of the targets: what the advisor is told of them
HEADER = ("req/s", "policy", "both %", "TTFT %", "ITL %", "refused", "TTFT p50", "p99", "ITL p99", "steps")


@dataclass
class Trace:
    arrival: float  # seconds
    tokens: list[float] = field(default_factory=list)  # when each came; empty: refused

    @property
    def ttft_ms(self) -> float:
        return 1e3 * (self.tokens[0] - self.arrival)

    @property
    def gaps_ms(self) -> list[float]:
        return sorted(1e3 * (after - before) for before, after in itertools.pairwise(self.tokens))


def make_scheduler(arguments: argparse.Namespace) -> SteeredScheduler:
    config = EngineArgs(
        model=str(MODEL),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=2048,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK_SIZE,
    ).create_engine_config()
    num_blocks = config.cache_config.num_gpu_blocks = CACHE_TOKENS // BLOCK_SIZE
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=64, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    return SteeredScheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
    )


class Run:
    def __init__(self, arguments: argparse.Namespace, rate: float, policy: str) -> None:
        self._arguments, self._clock = arguments, ManualClock()
        self._draw = random.Random(arguments.seed)
        self._noise = random.Random(arguments.seed + 1)
        self._hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        self._scheduler = make_scheduler(arguments)
        self._arrivals = self._poisson(rate)
        self._next: float | None = next(self._arrivals, None)
        self._stopped = 0.0  # seconds so far
        self.traces: list[Trace] = []
        self.num_steps = 0
        if policy != STOCK:
            self._steer(policy)

    def to_the_end(self) -> None:
        scheduler = self._scheduler
        while self._next is not None or scheduler.has_requests():
            if not scheduler.has_requests() and self._next is not None:
                self._clock.now = max(self._clock.now, self._next + self._stopped)
            while self._next is not None and self._next + self._stopped <= self._clock.now:
                self._add(self._next + self._stopped)
                self._next = next(self._arrivals, None)
            if scheduler.has_requests():
                self._step()

    def _poisson(self, rate: float) -> Iterator[float]:
        draw, now = random.Random(self._arguments.seed + 2), 0.0
        while (now := now + draw.expovariate(rate)) <= self._arguments.seconds:
            yield now

    def _steer(self, policy: str) -> None:
        args = self._arguments
        decode, per_token = (args.base_ms + args.decode_ms) / 1e3, args.prompt_ms / 1e3
        beliefs = LatencyCoefficients(
            step_base=0.8 * decode,
            prefill_token=per_token,
            decode_base=0.1 * decode,
            decode_seq=per_token,
            decode_context=1e-4 * per_token,
            overlap=0.0,
        )
        max_ttft_ms = max(LEAST_MAX_TTFT_MS, MAX_TTFT_TARGETS * TOLD * args.ttft_ms)  # as the gateway derives it
        settings = {"policy": policy, "max_ttft_ms": max_ttft_ms, "max_wait_ms": 20_000.0}
        advisor = make_advisor(self._scheduler, settings | {"starving_turn_ms": 2_000.0}, estimates(beliefs))
        self._scheduler.steer(Steering(advisor, self._clock, self._scheduler.is_exact))

    def _add(self, arrival: float) -> None:
        args, number = self._arguments, len(self.traces)
        age_ms = 1e3 * (self._clock.now - arrival)
        extra = {"class": 0, "ttft_ms": TOLD * args.ttft_ms, "itl_ms": TOLD * args.itl_ms, "age_ms": age_ms}
        params = SamplingParams(max_tokens=args.output_len, ignore_eos=True, extra_args={EXTRA: extra})
        params.update_from_generation_config({}, None)
        prompt = [self._draw.randrange(10, 900) for _ in range(args.input_len)]
        request = Request(str(number), prompt, params, None, block_hasher=self._hasher)
        self.traces.append(Trace(arrival))
        if self._scheduler.retry_seconds(request) is None:
            self._scheduler.add_request(request)

    def _step(self) -> None:
        args, plan = self._arguments, self._scheduler.schedule()
        ran = runner_output(plan, self._scheduler)
        if not plan.total_num_scheduled_tokens:
            self._clock.now += NAP_SECONDS
        else:
            num_decodes = sum(n == 1 for n in plan.num_scheduled_tokens.values())
            num_prompt = plan.total_num_scheduled_tokens - num_decodes
            milliseconds = args.base_ms + args.decode_ms * num_decodes + args.prompt_ms * num_prompt
            self._clock.now += milliseconds / 1e3 * math.exp(self._noise.gauss(0.0, args.noise))
            self.num_steps += 1
            if self.num_steps in args.stops:
                self._clock.now += STOP_SECONDS
                self._stopped += STOP_SECONDS
        for name, tokens in zip(ran.req_ids, ran.sampled_token_ids, strict=True):
            if tokens:
                self.traces[int(name)].tokens.append(self._clock.now)
        self._scheduler.update_from_output(plan, ran)


def row(arguments: argparse.Namespace, rate: float, policy: str) -> list[str]:
    run = Run(arguments, rate, policy)
    run.to_the_end()
    served = [trace for trace in run.traces if trace.tokens]
    in_time = [trace.ttft_ms <= arguments.ttft_ms for trace in served]
    steady = [at(trace.gaps_ms, 0.99) <= arguments.itl_ms for trace in served]
    num_both = sum(a and b for a, b in zip(in_time, steady, strict=True))
    shares = [f"{100 * num / max(1, len(run.traces)):.0f}" for num in (num_both, sum(in_time), sum(steady))]
    ttft, gaps = sorted(t.ttft_ms for t in served), sorted(gap for t in served for gap in t.gaps_ms)
    latencies = [f"{at(ttft, 0.5):.0f}", f"{at(ttft, 0.99):.0f}", f"{at(gaps, 0.99):.0f}"]
    return [f"{rate:g}", policy, *shares, str(len(run.traces) - len(served)), *latencies, str(run.num_steps)]


def at(ordered: list[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))] if ordered else 0.0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[7, 7.5, 8, 8.5, 9, 9.5], help="requests per second")
    parser.add_argument("--policies", nargs="+", default=[STOCK, "hocket"], help=f"{STOCK}, or one of the core's")
    parser.add_argument("--seconds", type=float, default=90.0, help="of arrivals")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--ttft-ms", type=float, default=1000.0)
    parser.add_argument("--itl-ms", type=float, default=150.0)
    parser.add_argument("--max-num-seqs", type=int, default=128)
    # 100 M parameters in bfloat16 on vLLM for CPUs, two cores: shares of what a closed loop does at 1, 8, 32, 64
    parser.add_argument("--base-ms", type=float, default=6.7)
    parser.add_argument("--decode-ms", type=float, default=0.56)
    parser.add_argument("--prompt-ms", type=float, default=0.22)
    parser.add_argument("--noise", type=float, default=0.2)
    parser.add_argument("--stops", type=int, nargs="*", default=[], help="numbers of steps")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    init_none_hash(sha256)
    print(render(HEADER, [row(arguments, *pair) for pair in itertools.product(arguments.rates, arguments.policies)]))


if __name__ == "__main__":
    main()
