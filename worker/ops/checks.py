"""Whether pools, batches and stored tokens are what kernels can take. ValueError where not."""

from __future__ import annotations

import torch
from torch import Tensor

from worker.batch.int8_cache import vector_size
from worker.batch.paged_pool import PagedPool, StepBatch, StoredTokens
from worker.ops.tensor_spec import match


def check_pool(pool: PagedPool) -> tuple[int, int, int, int]:
    """Returns layers_per_unit, block_size, num_groups and max_blocks_per_seq."""
    data, table = pool.data, pool.block_table
    shape = match("data[U,F,b,D|u,f,D,1] block_table[R,G,2,B|r,g,B,1]", data, table)
    _, layers_per_unit, block_size, dim, _, _, _, num_groups, max_blocks, *_ = shape
    has_dtype = data.dtype is torch.int8 or (data.dtype.is_floating_point and data.dtype.itemsize <= 4)
    if not has_dtype or table.dtype is not torch.int32:
        raise ValueError("the pool must be of int8 or a floating dtype that kernels have, its block table int32")
    if table.device != data.device or dim not in _vector_sizes(pool):
        raise ValueError("the pool must have vectors of num_kv_heads * head_dim, its block table on the same device")
    if data.dtype is torch.int8 and (not data.is_cpu or block_size * pool.num_kv_heads * pool.head_dim % 2):
        raise ValueError("a pool of int8 is on the CPU, and a block of its layers has an even number of elements")
    if pool.int8_rows is not None:
        _check_int8_rows(pool, pool.int8_rows)
    if min(*data.shape, *table.shape) < 1:
        raise ValueError(f"a pool of {list(data.shape)} with block tables of {list(table.shape)} has room for nothing")
    if not (data.is_contiguous() and table.is_contiguous()):
        raise ValueError("the pool and its block table must be contiguous")
    return layers_per_unit, block_size, num_groups, max_blocks


def _vector_sizes(pool: PagedPool) -> set[int]:
    """On the CPU there may be room for rows in int8, and none of them."""
    has_room = {pool.int8_rows is not None, pool.int8_rows is not None or pool.data.is_cpu}
    return {vector_size(pool.num_kv_heads, pool.head_dim, pool.data.dtype, has_int8_rows=room) for room in has_room}


def _check_int8_rows(pool: PagedPool, rows: Tensor) -> None:
    match(f"int8_rows[{len(pool.block_table)}|1]", rows)
    _, _, block_size, dim = pool.data.shape
    if rows.dtype is not torch.uint8 or not (rows.is_cpu and pool.data.is_cpu) or pool.data.dtype is torch.int8:
        raise ValueError("rows in int8 are told by bytes on the CPU, as is the pool, which is of another dtype")
    if block_size * pool.num_kv_heads * pool.head_dim % 2:
        raise ValueError("where rows are in int8 a block of a layer has an even number of elements")
    if 2 * vector_size(pool.num_kv_heads, pool.head_dim, torch.int8) > dim * pool.data.dtype.itemsize:
        raise ValueError(f"heads of {pool.head_dim} do not fit a half of what they take in {pool.data.dtype}")


def check_batch(batch: StepBatch, pool: PagedPool) -> tuple[int, int]:
    """Returns the numbers of tokens and sequences."""
    num_tokens, num_seqs = match(
        "positions[T|1] token_row[T|1] rows[S|1] seq_lens[S|1]",
        batch.positions, batch.token_row, batch.rows, batch.seq_lens,
    )  # fmt: skip
    indices = (batch.positions, batch.token_row, batch.rows, batch.query_start, batch.seq_lens)
    if any(t.dtype is not torch.int32 or t.device != pool.data.device for t in indices):
        raise ValueError("the indices of the batch must be int32 and on the device of the pool")
    if batch.query_start.shape != (num_seqs + 1,):
        raise ValueError("query_start must have S + 1 entries")
    if batch.positions.is_cpu:
        _check_contents(batch, pool, num_tokens)
    return num_tokens, num_seqs


def _check_contents(batch: StepBatch, pool: PagedPool, num_tokens: int) -> None:
    """Once per step, and not where it would make a device wait. Units that block tables name are the core's matter."""
    num_rows, max_tokens = len(pool.block_table), pool.block_table.shape[-1] * pool.data.shape[2]
    for name, values, limit in (
        ("positions", batch.positions, max_tokens),
        ("token_row", batch.token_row, num_rows),
        ("rows", batch.rows, num_rows),
        ("seq_lens", batch.seq_lens, max_tokens + 1),
    ):
        numbers = values.numpy()
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= limit):
            raise ValueError(f"{name} must be in [0, {limit})")
    starts, lens = batch.query_start.numpy(), batch.seq_lens.numpy()
    sizes = starts[1:] - starts[:-1]
    if starts[0] != 0 or starts[-1] > num_tokens or (sizes < 0).any() or (sizes > lens).any():
        raise ValueError("query_start must ascend from 0 to at most the number of tokens, by no more than seq_lens")
    if len(lens) and (lens.max() > batch.max_seq_len or sizes.max() > batch.max_query_len):
        raise ValueError("max_seq_len and max_query_len must be the largest of their kind, or more")


def check_stored(tokens: StoredTokens, pool: PagedPool, size: int) -> int:
    """size: elements of a vector that is stored. Returns the number of tokens."""
    (count,) = match("positions[n|1] token_row[n|1]", tokens.positions, tokens.token_row)
    for index in (tokens.positions, tokens.token_row, tokens.source):
        if index is not None:
            check_index(index, count, pool.data.device)
    if pool.data.dtype is torch.int8:
        raise ValueError("in int8 only K and V are kept, and only as rope_kv_write() stores them")
    if size > (dim := pool.num_kv_heads * pool.head_dim):
        raise ValueError(f"a vector of {size} does not fit one of the pool's, {dim}")
    return count


def check_int8_blocks(pool: PagedPool, from_units: Tensor, to_units: Tensor) -> int:
    """Returns the number of blocks."""
    if pool.int8_rows is None:
        raise ValueError("the pool has no rows in int8")
    groups = pool.num_groups
    match(f"from_units[n,{groups},2|{2 * groups},2,1] to_units[n,{groups}|{groups},1]", from_units, to_units)
    if any(units.dtype is not torch.int32 or not units.is_cpu for units in (from_units, to_units)):
        raise ValueError("units must be int32 and on the CPU")
    return len(to_units)


def check_index(index: Tensor, count: int, device: torch.device) -> None:
    match(f"index[{count}|1]", index)
    if index.dtype is not torch.int32 or index.device != device:
        raise ValueError(f"an index must be int32 on {device}, not {index.dtype} on {index.device}")


def check_heads(q: Tensor, num_tokens: int, pool: PagedPool, num_kv_heads: int, rotary_dim: int) -> None:
    """q [num_tokens, n_heads, hd] and as many KV heads, rotary_dim elements of each rotated."""
    tokens, num_heads, head_dim = q.shape
    if tokens != num_tokens or head_dim != pool.head_dim or num_kv_heads != pool.num_kv_heads:
        raise ValueError(
            f"q {list(q.shape)} and {num_kv_heads} KV heads do not fit a batch of {num_tokens} tokens and a "
            f"pool of {pool.num_kv_heads} heads of {pool.head_dim}"
        )
    if num_heads % num_kv_heads or rotary_dim % 2 or rotary_dim > head_dim:
        raise ValueError(f"{num_heads} heads over {num_kv_heads} KV heads, {rotary_dim} of {head_dim} rotated")


def check_unit_copy(to: Tensor, source: Tensor, indices: list[Tensor], device: torch.device) -> int:
    """indices: at most one for each of the two. Returns the number of units that are copied on `device`."""
    if to.shape[1:] != source.shape[1:] or to.dtype is not source.dtype:
        raise ValueError(f"units of {source.dtype} {list(source.shape[1:])} to {to.dtype} {list(to.shape[1:])}")
    for place in (to, source):
        if not place.is_contiguous():
            raise ValueError("what units are copied between must be contiguous")
        if device.type == "cuda" and place.is_cpu and not place.is_pinned():
            raise ValueError("a place on the host must be pinned for CUDA to copy from it or to it")
    count = len(indices[0]) if indices else min(len(to), len(source))
    for index in indices:
        check_index(index, count, device)
    return count
