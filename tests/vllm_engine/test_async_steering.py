"""vLLM's asynchronous scheduler, steered, without a model: two steps are under way, as on devices.

A runner on paper follows vLLM's own (V1 layout): it notes what every slot of the cache holds, and samples from a
request only where all its slots hold that request's tokens. Needs vLLM: make test-vllm.
"""

from __future__ import annotations

import random
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from fakes.random_steering import RandomSteering
from vllm_engine.first_estimate import BEFORE_ANY, estimates
from vllm_engine.make_advisor import make_advisor
from vllm_engine.scheduler import SteeredAsyncScheduler
from vllm_engine.steering import Steering

MODEL = Path(__file__).resolve().parents[2] / "worker/demo_model"
BLOCK, NUM_BLOCKS, NUM_REQUESTS, DEPTH = 16, 60, 150, 2


def token_after(prompt: list[int], position: int) -> int:
    return 10 + hash((tuple(prompt), position)) % 900


class PaperRunner:
    def __init__(self, prompts: dict[str, list[int]]) -> None:
        self._prompts = prompts
        self._slots: dict[tuple[int, int], tuple[int, int]] = {}  # what a slot of a block holds: token and position
        self._blocks: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}
        self._tokens: dict[str, list[int]] = {}  # known to the runner: it samples before the scheduler hears of it

    def run(self, step: Any) -> ModelRunnerOutput:
        for name in step.finished_req_ids:
            self._tokens.pop(name, None)
        for new in step.scheduled_new_reqs:
            self._tokens[new.req_id] = list(new.prompt_token_ids)
            self._blocks[new.req_id] = list(new.block_ids[0])
            self._computed[new.req_id] = new.num_computed_tokens
        cached = step.scheduled_cached_reqs
        rows = zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)
        for name, blocks, num_computed in rows:
            if name in cached.resumed_req_ids:
                self._blocks[name] = list(blocks[0])
                self._tokens[name] = list(cached.all_token_ids[name])
            elif blocks is not None:
                self._blocks[name] += blocks[0]
            self._computed[name] = num_computed
        names = list(step.num_scheduled_tokens)
        sampled = [self._compute(name, step.num_scheduled_tokens[name]) for name in names]
        return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)

    def _compute(self, name: str, num_tokens: int) -> list[int]:
        tokens, blocks, start = self._tokens[name], self._blocks[name], self._computed[name]
        end = start + num_tokens
        assert end <= len(tokens), "a token is computed that nobody knows"
        for position in range(end):
            slot = (blocks[position // BLOCK], position % BLOCK)
            if position >= start:
                self._slots[slot] = (tokens[position], position)
            assert self._slots.get(slot) == (tokens[position], position), f"{name}: {position} holds something else"
        if end < len(tokens):
            return []
        tokens.append(token_after(self._prompts[name], end))
        return tokens[-1:]


def make_scheduler() -> SteeredAsyncScheduler:
    arguments = EngineArgs(
        model=str(MODEL),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=16,
        max_num_batched_tokens=256,
        max_model_len=512,
        block_size=BLOCK,
    )
    config = arguments.create_engine_config()
    config.scheduler_config.async_scheduling = True  # which no CPU has
    config.cache_config.num_gpu_blocks = NUM_BLOCKS
    init_none_hash(sha256)
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=32, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    return SteeredAsyncScheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=NUM_BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
    )


def serve(steering_of: Any, seed: int) -> tuple[Any, Any]:
    """Every request gets its own tokens, all of them, in order. Returns scheduler and steering."""
    draw, scheduler = random.Random(seed), make_scheduler()
    steering = steering_of(scheduler)
    scheduler.steer(steering)
    prompts: dict[str, list[int]] = {}
    answers: dict[str, list[int]] = {}
    limits: dict[str, int] = {}
    prefix = [draw.randrange(10, 900) for _ in range(48)]
    runner, under_way = PaperRunner(prompts), deque[tuple[Any, ModelRunnerOutput]]()
    hasher = get_request_block_hasher(BLOCK, sha256)
    num_idle = 0
    while len(prompts) < NUM_REQUESTS or scheduler.get_num_unfinished_requests() or under_way:
        for _ in range(draw.randint(0, 2) if len(prompts) < NUM_REQUESTS else 0):
            name = str(len(prompts))
            own = [draw.randrange(10, 900) for _ in range(draw.randint(1, 120))]
            prompts[name], answers[name] = [*prefix, *own] if draw.random() < 0.3 else own, []
            limits[name] = draw.randint(1, 30)
            params = SamplingParams(max_tokens=limits[name], ignore_eos=True)
            params.update_from_generation_config({}, None)
            scheduler.add_request(Request(name, prompts[name], params, None, block_hasher=hasher))
        step = scheduler.schedule()
        if step.total_num_scheduled_tokens or step.finished_req_ids:
            under_way.append((step, runner.run(step)))
            num_idle = 0
        elif not under_way:
            num_idle += 1
            assert num_idle < 200, "nobody is served"
        if under_way and (len(under_way) == DEPTH or not step.total_num_scheduled_tokens):
            outputs = scheduler.update_from_output(*under_way.popleft())
            for of_client in outputs.values():
                for output in of_client.outputs:
                    answers[output.request_id] += output.new_token_ids
    for name, prompt in prompts.items():
        expected = [token_after(prompt, len(prompt) + i) for i in range(limits[name])]
        assert answers[name] == expected, name
    steering.check_invariants()
    assert scheduler.num_free_blocks == scheduler.num_blocks
    return scheduler, steering


@pytest.mark.parametrize("seed", range(3))
def test_random_steering_keeps_every_token(seed: int) -> None:
    _, steering = serve(lambda _: RandomSteering(seed), seed)
    assert steering.num_preempted > 5


@pytest.mark.parametrize("policy", ["hocket", "echo", "fcfs", "apt"])
def test_our_policies_keep_every_token(policy: str) -> None:
    def made(scheduler: Any) -> Steering:
        advisor = make_advisor(scheduler, {"policy": policy}, estimates(BEFORE_ANY))
        return Steering(advisor, time.monotonic, scheduler.is_exact)

    _, steering = serve(made, 7)
    assert steering.stats()["num_steps"] > 100
