"""A paged batch to try kernels on: random units, NaN wherever nothing was written."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from worker.batch.int8_cache import integers_and_scales, quantize_heads, vector_size
from worker.batch.paged_pool import PagedPool, StepBatch


@dataclass(frozen=True)
class Sequence:
    num_queries: int
    seq_len: int  # num_queries included


@dataclass(frozen=True)
class PagedBatch:
    batch: StepBatch
    pool: PagedPool

    @property
    def num_tokens(self) -> int:
        return len(self.batch.positions)


def make_paged_batch(
    sequences: list[Sequence],
    *,
    num_layers: int = 1,
    layers_per_unit: int = 1,
    block_size: int = 16,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> PagedBatch:
    """The pool holds random vectors for every token of every sequence and layer, the queries' own included."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    num_groups = -(-num_layers // layers_per_unit)
    max_blocks = max(-(-s.seq_len // block_size) for s in sequences) + 2
    rows = rng.sample(range(len(sequences) + 3), len(sequences))
    num_used = sum(-(-s.seq_len // block_size) * num_groups * 2 for s in sequences)
    data = torch.full((num_used + 5, layers_per_unit, block_size, num_kv_heads * head_dim), float("nan"))
    table = torch.full((len(sequences) + 3, num_groups, 2, max_blocks), 2**30, dtype=torch.int32)
    units = rng.sample(range(num_used + 5), num_used)
    for row, sequence in zip(rows, sequences, strict=True):
        for group in range(num_groups):
            for kind in range(2):
                for block in range(-(-sequence.seq_len // block_size)):
                    unit = table[row, group, kind, block] = units.pop()
                    filled = min(block_size, sequence.seq_len - block * block_size)
                    data[unit, :, :filled] = torch.randn(layers_per_unit, filled, data.shape[-1])
    data = _in_int8(data, num_kv_heads) if dtype is torch.int8 else data.to(dtype)
    pool = PagedPool(data.to(device), table.to(device), num_kv_heads, head_dim)
    return PagedBatch(_make_step(sequences, rows, device), pool)


def _in_int8(data: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """Scales are NaN wherever nothing was written."""
    size = vector_size(num_kv_heads, data.shape[-1] // num_kv_heads, torch.int8)
    pool = torch.zeros(*data.shape[:3], size, dtype=torch.int8)
    integers, scales = integers_and_scales(pool, num_kv_heads)
    rounded, of_heads = quantize_heads(data.view(*data.shape[:3], num_kv_heads, -1))
    integers.copy_(rounded.flatten(3))
    scales.copy_(of_heads)
    return pool


def _make_step(sequences: list[Sequence], rows: list[int], device: str) -> StepBatch:
    positions = [p for s in sequences for p in range(s.seq_len - s.num_queries, s.seq_len)]
    token_row = [row for row, s in zip(rows, sequences, strict=True) for _ in range(s.num_queries)]
    query_start = [0]
    for s in sequences:
        query_start.append(query_start[-1] + s.num_queries)

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return StepBatch(
        token_ids=torch.zeros(len(positions), dtype=torch.int32, device=device),
        positions=ints(positions),
        token_row=ints(token_row),
        query_start=ints(query_start),
        seq_lens=ints([s.seq_len for s in sequences]),
        rows=ints(rows),
        sample_tokens=torch.tensor([end - 1 for end in query_start[1:]], device=device),
        max_query_len=max(s.num_queries for s in sequences),
        max_seq_len=max(s.seq_len for s in sequences),
    )
