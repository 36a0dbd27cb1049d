"""A pool with hidden blocks to try kernels on: random units, NaN wherever nothing was written."""

from __future__ import annotations

import random

import torch

from worker.batch.paged_pool import PagedPool, StoredTokens


def make_hidden_pool(
    num_rows: int,
    num_blocks: int,
    *,
    num_layers: int = 1,
    layers_per_unit: int = 1,
    block_size: int = 16,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> PagedPool:
    """Rows of num_blocks hidden blocks, one unit per layer group each. The unused half of the table leads nowhere."""
    num_groups = -(-num_layers // layers_per_unit)
    units = list(range(num_rows * num_groups * num_blocks + 3))
    random.Random(seed).shuffle(units)
    places = torch.full((num_rows, 2 * num_groups, num_blocks), 2**30, dtype=torch.int32)
    places[:, :num_groups] = torch.tensor(units[:-3], dtype=torch.int32).view(num_rows, num_groups, num_blocks)
    data = torch.full((len(units), layers_per_unit, block_size, num_kv_heads * head_dim), float("nan"), dtype=dtype)
    table = places.view(num_rows, num_groups, 2, num_blocks)
    return PagedPool(data.to(device), table.to(device), num_kv_heads, head_dim)


def some_tokens(num_rows: int, num_positions: int, count: int, *, device: str = "cpu", seed: int = 0) -> StoredTokens:
    """Distinct tokens anywhere in the rows."""
    chosen = random.Random(seed).sample(range(num_rows * num_positions), min(count, num_rows * num_positions))
    places = torch.tensor(chosen, dtype=torch.int32, device=device)
    return StoredTokens(places // num_positions, places % num_positions)
