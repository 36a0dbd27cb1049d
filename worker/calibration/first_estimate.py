"""What the scheduler believes of step times before it has seen any: some forward passes, and rules of thumb.

Without a profile (hocket calibrate) this is all there is at first; the scheduler learns from the steps it measures.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from schedcore.api.config import EngineConfig
from schedcore.latency.latency_profile import LatencyCoefficients
from worker.calibration.measure_model import make_timer, shape_limits
from worker.calibration.step_shapes import MIN_CHUNK, MIN_DECODE, Chunk, StepShape
from worker.forward.warm_up import warm_up
from worker.models.model_config import ModelConfig
from worker.runner.loaded_runner import LoadedRunner

FEW_TOKENS, MANY_TOKENS = 1, 33
LONG_CHUNK = 2048  # tokens: on a GPU fewer may cost no more than one
RECORDED_REPEATS = 5
SPARE_BLOCKS = 8
CACHE_BYTES_PER_SECOND = {"cpu": 5e9, "cuda": 1e12}  # at which attention reads K and V, by order of magnitude


def first_estimate(loaded: LoadedRunner, config: EngineConfig) -> LatencyCoefficients:
    """Takes as long as the passes, some milliseconds to tens of them. The model must have no requests."""
    return _of_recorded(loaded, config) if loaded.graph_sizes else _of_passes(loaded)


def _of_recorded(loaded: LoadedRunner, config: EngineConfig) -> LatencyCoefficients:
    """Where steps are recorded. One that is too large for that, or with --max-cudagraph-capture-size below 16 any with
    a prompt, takes what the host needs to launch it, however short the prompt: the floor. Believed to be the prompt's
    share instead, that would cut all prompts into pieces."""
    limits = shape_limits(loaded, config)
    most = min(LONG_CHUNK, limits.max_num_tokens, limits.max_model_len - 1, (limits.num_blocks - 2) * limits.block_size)
    # A scheduler for the whole pool of a large GPU would take as long to make as the steps.
    limits = replace(limits, num_blocks=min(limits.num_blocks, most // limits.block_size + SPARE_BLOCKS))
    shapes = [StepShape(decodes=(MIN_DECODE,)), *(StepShape(chunks=(Chunk(0, n),)) for n in (MIN_CHUNK, most))]
    if most < MIN_CHUNK or not all(limits.allows(shape) for shape in shapes):
        return _of_passes(loaded)
    timer = make_timer(loaded, limits, time.perf_counter)
    decode, short, long = (min(timer.measure(shape, RECORDED_REPEATS).execute_seconds) for shape in shapes)
    per_token = max(long - decode, 0.01 * decode) / most
    floor = max(0.0, short - decode)
    return _coefficients(loaded, step_base=0.9 * decode, decode_base=0.1 * decode, per_token=per_token, floor=floor)


def _of_passes(loaded: LoadedRunner) -> LatencyCoefficients:
    few, many = (_seconds(loaded, n) for n in (FEW_TOKENS, MANY_TOKENS))
    per_token = max((many - few) / (MANY_TOKENS - FEW_TOKENS), 0.01 * few)
    return _coefficients(loaded, step_base=0.8 * few, decode_base=0.1 * few, per_token=per_token, floor=0.0)


def _coefficients(
    loaded: LoadedRunner, *, step_base: float, decode_base: float, per_token: float, floor: float
) -> LatencyCoefficients:
    """Seconds. floor: that a step with a prompt takes at least, beyond its base."""
    kv_bytes = 2 * loaded.config.num_layers * loaded.pool.data.shape[-1] * loaded.pool.data.dtype.itemsize
    per_context = kv_bytes / CACHE_BYTES_PER_SECOND[loaded.device.type]  # of a token that a decode attends to
    return LatencyCoefficients(
        step_base=step_base,
        prefill_floor=floor,
        prefill_token=per_token,
        prefill_pair=per_context / 16,  # a chunk's tokens share what is read
        decode_base=decode_base,
        decode_seq=per_token,
        decode_context=per_context,
        hidden_token=projection_share(loaded.config) * per_token,
        overlap=0.0,
    )


def projection_share(config: ModelConfig) -> float:
    """Of a layer's products for one token, those of K and V."""
    hidden, query = config.hidden_size, config.num_heads * config.head_dim
    num_mlp = 3 if config.activation == "silu" else 2  # gated, or not
    projections = 2 * hidden * config.kv_size
    return projections / (projections + 2 * hidden * query + num_mlp * hidden * config.intermediate_size)


def _seconds(loaded: LoadedRunner, num_tokens: int) -> float:
    num_tokens = min(num_tokens, loaded.memory.max_model_len)
    begin = time.perf_counter()
    warm_up(
        loaded.model,
        num_tokens=num_tokens,
        num_samples=1,
        max_len=num_tokens,
        dtype=loaded.dtype,
        device=loaded.device,
    )
    if loaded.device.type == "cuda":
        torch.cuda.synchronize(loaded.device)
    return time.perf_counter() - begin
