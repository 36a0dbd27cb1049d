"""K and V in int8, as kernels/include/base/paged_pool.h lays them out: integers, and a scale per token and head.

A pool is of int8, or single rows of it are: then a unit's layer holds K in one half of its bytes and V in the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

SCALE_BYTES = 2  # bfloat16
_NAN_BITS = 0x7FC0
_LEAST = 1e-30  # a head whose largest element is not above is zero


def vector_size(num_kv_heads: int, head_dim: int, dtype: torch.dtype, *, has_int8_rows: bool = False) -> int:
    """Of one token's K or V in one layer, in elements of the pool. has_int8_rows: where single rows may be in int8."""
    has_scales = dtype is torch.int8 or (has_int8_rows and dtype.itemsize == 2)  # four bytes are more than enough
    return num_kv_heads * (head_dim + (SCALE_BYTES if has_scales else 0))


def dense_vectors(data: Tensor, dim: int) -> Tensor:
    """Where vectors of d_kv = dim lie in a pool that is not of int8: a view [U, F, block_size, dim]."""
    num_units, layers, block_size, _ = data.shape
    return data.flatten(2)[:, :, : block_size * dim].view(num_units, layers, block_size, dim)


def half_of_units(data: Tensor, num_kv_heads: int, head_dim: int, kind: int) -> Tensor:
    """K (0) or V (1) of int8 rows: a view of the pool that has them, as if it were one of int8."""
    num_units, layers, block_size, _ = data.shape
    size = vector_size(num_kv_heads, head_dim, torch.int8)
    of_layers = data.flatten(2).view(torch.int8)  # [U, F, bytes]
    first = kind * of_layers.shape[-1] // 2
    return of_layers[:, :, first : first + block_size * size].view(num_units, layers, block_size, size)


def integers_and_scales(data: Tensor, num_kv_heads: int) -> tuple[Tensor, Tensor]:
    """Views of a pool [U, F, block_size, bytes]: int8 [U, F, block_size, d_kv], bfloat16 [..., num_kv_heads]."""
    num_units, layers, block_size, num_bytes = data.shape
    dim = num_bytes - SCALE_BYTES * num_kv_heads
    of_layers = data.view(num_units, layers, block_size * num_bytes)
    scales = of_layers[:, :, block_size * dim :].view(torch.bfloat16)
    return (
        of_layers[:, :, : block_size * dim].view(num_units, layers, block_size, dim),
        scales.view(num_units, layers, block_size, num_kv_heads),
    )


def quantize_heads(heads: Tensor) -> tuple[Tensor, Tensor]:
    """[..., head_dim] -> int8 of the same shape and bfloat16 [...]: the next one above what makes the largest 127.

    The same bits as store_head() of kernels/cpu/cache/int8_heads.h. What is not finite makes the scale NaN.
    """
    heads = heads.float()
    largest = heads.abs().amax(-1)
    is_finite, is_zero = heads.isfinite().all(-1), ~(largest > _LEAST)
    wanted = torch.where(is_finite & ~is_zero, largest, 127.0) / 127
    scales = (((wanted.view(torch.int32) + 0xFFFF) >> 16) << 16).view(torch.float32)
    inverse = torch.where(is_finite & ~is_zero, 1 / scales, 0.0)
    integers = (heads.nan_to_num(0, 0, 0) * inverse[..., None]).round().to(torch.int8)
    stored = torch.where(is_zero, 0.0, scales).bfloat16()
    stored.view(torch.int16)[~is_finite] = _NAN_BITS
    return integers, stored
