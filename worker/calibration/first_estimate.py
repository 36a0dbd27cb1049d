"""What the scheduler believes of step times before it has seen any: two forward passes, and rules of thumb.

Without a profile (hocket calibrate) this is all there is at first; the scheduler learns from the steps it measures.
"""

from __future__ import annotations

import time

import torch

from schedcore.latency.latency_profile import LatencyCoefficients
from worker.forward.warm_up import warm_up
from worker.models.model_config import ModelConfig
from worker.runner.loaded_runner import LoadedRunner

FEW_TOKENS, MANY_TOKENS = 1, 33
CACHE_BYTES_PER_SECOND = {"cpu": 5e9, "cuda": 1e12}  # at which attention reads K and V, by order of magnitude


def first_estimate(loaded: LoadedRunner) -> LatencyCoefficients:
    """Takes as long as the two passes, some milliseconds to tens of them."""
    few, many = (_seconds(loaded, n) for n in (FEW_TOKENS, MANY_TOKENS))
    config = loaded.config
    per_token = max((many - few) / (MANY_TOKENS - FEW_TOKENS), 0.01 * few)
    kv_bytes = 2 * config.num_layers * loaded.pool.data.shape[-1] * loaded.pool.data.dtype.itemsize
    per_context = kv_bytes / CACHE_BYTES_PER_SECOND[loaded.device.type]
    return LatencyCoefficients(
        step_base=0.8 * few,
        prefill_token=per_token,
        prefill_pair=per_context / 16,  # a chunk's tokens share what is read
        decode_base=0.1 * few,
        decode_seq=per_token,
        decode_context=per_context,
        hidden_token=projection_share(config) * per_token,
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
