"""A batch and its cache for kernels that are timed: random vectors, units anywhere in the pool."""

from __future__ import annotations

import torch

from worker.batch.host_memory import HugePageMemory
from worker.batch.int8_cache import integers_and_scales, quantize_heads, vector_size
from worker.batch.paged_pool import PagedPool, StepBatch

LAYERS_PER_UNIT, BLOCK_SIZE = 4, 16


def make_paged_batch(
    sequences: list[tuple[int, int]],
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: str,
    num_shared: int = 0,
) -> tuple[StepBatch, PagedPool]:
    """sequences: query tokens, and tokens with cache, these included. Whole blocks of the first num_shared: all one."""
    num_seqs, longest = len(sequences), max(seq_len for _, seq_len in sequences)
    blocks = -(-longest // BLOCK_SIZE)
    units = torch.randperm(num_seqs * 2 * blocks, dtype=torch.int32).view(num_seqs, 1, 2, blocks)
    units[:, ..., : num_shared // BLOCK_SIZE] = units[:1, ..., : num_shared // BLOCK_SIZE].clone()
    data = _random_units(units.numel(), kv_heads, head_dim, dtype)
    layers = (data.shape[0], LAYERS_PER_UNIT, *data.shape[2:])
    data = HugePageMemory().empty(layers, dtype).copy_(data.expand(layers))  # as in a worker on CPU
    pool = PagedPool(data.to(device), units.to(device), kv_heads, head_dim)

    def ints(values: torch.Tensor) -> torch.Tensor:
        return values.to(torch.int32).contiguous().to(device)

    queries, seq_lens = torch.tensor(sequences).unbind(1)
    rows = torch.arange(num_seqs)
    positions = torch.cat([torch.arange(seq_len - n, seq_len) for n, seq_len in sequences])
    batch = StepBatch(
        token_ids=ints(positions),
        positions=ints(positions),
        token_row=ints(rows.repeat_interleave(queries)),
        query_start=ints(torch.cat((torch.zeros(1, dtype=torch.int64), queries.cumsum(0)))),
        seq_lens=ints(seq_lens),
        rows=ints(rows),
        sample_tokens=rows.to(device),
        max_query_len=int(queries.max()),
        max_seq_len=longest,
    )
    return batch, pool


def _random_units(count: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Of one layer."""
    vectors = torch.randn(count, 1, BLOCK_SIZE, kv_heads, head_dim)
    if dtype is not torch.int8:
        return vectors.flatten(3).to(dtype)
    data = torch.empty(count, 1, BLOCK_SIZE, vector_size(kv_heads, head_dim, dtype), dtype=dtype)
    for part, rounded in zip(integers_and_scales(data, kv_heads), quantize_heads(vectors), strict=True):
        part.copy_(rounded.reshape(part.shape))
    return data
