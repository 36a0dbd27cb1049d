"""A paged batch to try kernels on: random units, NaN wherever nothing was written."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from worker.batch.int8_cache import dense_vectors, half_of_units, integers_and_scales, quantize_heads, vector_size
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
    in_int8: Collection[int] | None = None,
) -> PagedBatch:
    """The pool holds random vectors for every token of every sequence and layer, the queries' own included.

    in_int8: sequences whose rows are in int8, of a pool that may have such rows. The same vectors, whoever is.
    """
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
    step = _make_step(sequences, rows, device)
    if in_int8 is not None:
        pool = PagedPool(data, table, num_kv_heads, head_dim)
        return PagedBatch(step, _with_int8_rows(pool, [rows[i] for i in in_int8], dtype))
    data = _in_int8(data, num_kv_heads) if dtype is torch.int8 else data.to(dtype)
    return PagedBatch(step, PagedPool(data.to(device), table.to(device), num_kv_heads, head_dim))


def alone(batch: StepBatch, sequence: int) -> tuple[StepBatch, slice]:
    """One sequence of a batch, and which of the batch's tokens are its own."""
    begin, end = batch.query_start[sequence : sequence + 2].tolist()
    tokens = slice(begin, end)
    one = replace(
        batch,
        token_ids=batch.token_ids[tokens],
        positions=batch.positions[tokens],
        token_row=batch.token_row[tokens],
        query_start=torch.tensor([0, end - begin], dtype=torch.int32),
        seq_lens=batch.seq_lens[sequence : sequence + 1],
        rows=batch.rows[sequence : sequence + 1],
        sample_tokens=torch.zeros(1, dtype=torch.int64),
        max_query_len=end - begin,
        max_seq_len=int(batch.seq_lens[sequence]),
    )
    return one, tokens


def _in_int8(data: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """Scales are NaN wherever nothing was written."""
    size = vector_size(num_kv_heads, data.shape[-1] // num_kv_heads, torch.int8)
    pool = torch.zeros(*data.shape[:3], size, dtype=torch.int8)
    integers, scales = integers_and_scales(pool, num_kv_heads)
    rounded, of_heads = quantize_heads(data.view(*data.shape[:3], num_kv_heads, -1))
    integers.copy_(rounded.flatten(3))
    scales.copy_(of_heads)
    return pool


def _with_int8_rows(pool: PagedPool, rows: list[int], dtype: torch.dtype) -> PagedPool:
    """Of a pool in float32, the one in dtype. A block's unit of keys holds both, where no row is in int8 NaN stays."""
    table, num_kv_heads, head_dim = pool.block_table.clone(), pool.num_kv_heads, pool.head_dim
    size = vector_size(num_kv_heads, head_dim, dtype, has_int8_rows=True)
    data = torch.full((*pool.data.shape[:3], size), float("nan"), dtype=dtype)
    dense_vectors(data, num_kv_heads * head_dim).copy_(pool.data)
    for row in rows:
        num_blocks = int((table[row, 0, 0] < len(data)).sum())
        units = table[row, :, :, :num_blocks].clone()  # [groups, 2, blocks]
        data[units.long()] = float("nan")
        table[row] = 2**30
        table[row].flatten(0, 1)[: len(units), :num_blocks] = units[:, 0]
        for kind in range(2):
            integers, scales = integers_and_scales(half_of_units(data, num_kv_heads, head_dim, kind), num_kv_heads)
            rounded, of_heads = quantize_heads(pool.data[units[:, kind].long()].unflatten(-1, (num_kv_heads, head_dim)))
            integers[units[:, 0].long()], scales[units[:, 0].long()] = rounded.flatten(-2), of_heads
    int8_rows = torch.zeros(len(table), dtype=torch.uint8)
    int8_rows[rows] = 1
    return PagedPool(data, table, num_kv_heads, head_dim, int8_rows=int8_rows)


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
