"""What packers have written for one module -> its integers, scales and groups. N rows (outputs), K columns (inputs).

GPTQ: `qweight` int32 [K / f, N], f = 32 / bits values of consecutive columns in an int32, the first lowest; `qzeros`
int32 [groups, N / f], likewise of consecutive rows; `scales` [groups, N]; `g_idx` int32 [K], the group of each column.
AWQ: `qweight` int32 [K, N / 8], `qzeros` int32 [groups, N / 8], eight rows in an int32 in the order 0 2 4 6 1 3 5 7.
compressed-tensors: `weight_packed` int32 [N, K / f rounded up] of integers plus half of their range, or `weight` int8
[N, K]; `weight_scale` [N, groups], one column or one number; `weight_zero_point` likewise, int8 or packed along N.
In all of them a value is (integer - zero point) * scale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from worker.ops.weights.rounded_weight import GroupedWeight

NUM_BITS = (4, 8)
_AWQ_ROWS = (0, 2, 4, 6, 1, 3, 5, 7)  # whose values follow each other from the lowest bits of an int32

Parts = Mapping[str, Tensor]


class PackingError(Exception):
    """The message says which part is wrong; it is put behind the module's name."""


def gptq(
    parts: Parts, num_rows: int, in_features: int, group_sizes: Collection[int], zero_offset: int
) -> GroupedWeight:
    """group_sizes: that there may be. zero_offset: what was taken off zero points before they were stored.

    Raises PackingError, as the others do.
    """
    packed, zeros = (_part(parts, name, torch.int32) for name in ("qweight", "qzeros"))
    num_bits = _num_bits(packed, in_features)
    scales = _scales(parts, "scales", num_rows)
    _check_shape("qweight", packed, (in_features * num_bits // 32, num_rows))
    _check_shape("qzeros", zeros, (len(scales), _num_words(num_rows, num_bits)))
    levels = (1 << num_bits) - 1
    integers = _unpacked(packed.mT, num_bits)
    zero_points = (_unpacked(zeros, num_bits) + zero_offset & levels).mT
    group_of = _column_groups(parts.get("g_idx"), in_features, len(scales), group_sizes)
    return _grouped(integers, zero_points, scales.mT, group_of)


def awq(parts: Parts, num_rows: int, in_features: int, group_sizes: Collection[int]) -> GroupedWeight:
    packed, zeros = (_part(parts, name, torch.int32) for name in ("qweight", "qzeros"))
    scales, num_words = _scales(parts, "scales", num_rows), _num_words(num_rows, 4)
    _check_shape("qweight", packed, (in_features, num_words))
    _check_shape("qzeros", zeros, (len(scales), num_words))
    integers, zero_points = (_in_order(_unpacked(part, 4)).mT for part in (packed, zeros))
    return _grouped(integers, zero_points, scales.mT, _column_groups(None, in_features, len(scales), group_sizes))


def compressed_tensors(parts: Parts, num_rows: int, in_features: int, group_sizes: Collection[int]) -> GroupedWeight:
    integers = _compressed_integers(parts, num_rows, in_features)
    stored = _part(parts, "weight_scale")
    if stored.numel() == 1:
        stored = stored.reshape(1).expand(num_rows)
    transposed = {"weight_scale": (stored[:, None] if stored.dim() == 1 else stored).mT}
    scales = _scales(transposed, "weight_scale", num_rows).mT
    zero_points = torch.zeros(1, 1, dtype=torch.int16)
    if "weight_zero_point" in parts:
        zero_points = _compressed_zeros(parts, scales, in_features)
    order = parts.get("weight_g_idx")
    if order is not None and bool((order < 0).any()):  # there is none
        order = None
    return _grouped(integers, zero_points, scales, _column_groups(order, in_features, scales.shape[1], group_sizes))


def _compressed_integers(parts: Parts, num_rows: int, in_features: int) -> Tensor:
    """int16 [N, K]."""
    if "weight_packed" not in parts:
        stored = _part(parts, "weight", torch.int8)
        _check_shape("weight", stored, (num_rows, in_features))
        return stored.to(torch.int16)
    packed = _part(parts, "weight_packed", torch.int32)
    num_bits = _compressed_bits(packed, in_features)
    _check_shape("weight_packed", packed, (num_rows, -(-in_features * num_bits // 32)))
    return _unpacked(packed, num_bits)[:, :in_features] - (1 << num_bits - 1)


def _compressed_bits(packed: Tensor, in_features: int) -> int:
    """The last int32 of a row may have padding."""
    for bits in NUM_BITS:
        if packed.dim() == 2 and packed.shape[1] == -(-in_features * bits // 32):
            return bits
    raise PackingError(f"weight_packed is {list(packed.shape)}, which is neither 4 nor 8 bits of {in_features} columns")


def _compressed_zeros(parts: Parts, scales: Tensor, in_features: int) -> Tensor:
    """int16, as wide as the scales."""
    stored = parts["weight_zero_point"]
    if stored.dtype is torch.int32 and "weight_packed" in parts:
        num_bits = _compressed_bits(parts["weight_packed"], in_features)
        _check_shape("weight_zero_point", stored, (-(-len(scales) * num_bits // 32), scales.shape[1]))
        return (_unpacked(stored.mT, num_bits)[:, : len(scales)] - (1 << num_bits - 1)).mT
    stored = stored.to(torch.int16)
    if stored.numel() == 1:
        return stored.reshape(1, 1)
    stored = stored[:, None] if stored.dim() == 1 else stored
    _check_shape("weight_zero_point", stored, tuple(scales.shape))
    return stored


def _grouped(integers: Tensor, zero_points: Tensor, scales: Tensor, group_of: Tensor) -> GroupedWeight:
    """integers [N, K]; zero_points and scales [N, groups], zero_points also of one row and column for all."""
    each = zero_points[:, group_of] if zero_points.shape[1] > 1 else zero_points
    return GroupedWeight((integers - each).contiguous(), scales.contiguous(), group_of)


def _column_groups(stored: Tensor | None, in_features: int, num_groups: int, sizes: Collection[int]) -> Tensor:
    """int64 [K]."""
    if stored is not None:
        group_of = stored.long()
        if group_of.shape != (in_features,) or int(group_of.min()) < 0 or int(group_of.max()) >= num_groups:
            raise PackingError(f"g_idx must give each of {in_features} columns one of {num_groups} groups")
        return group_of
    size = in_features // num_groups
    if in_features % num_groups or (num_groups > 1 and sizes and size not in sizes):
        raise PackingError(
            f"{num_groups} groups of {' or '.join(map(str, sizes)) or 'one size'} in {in_features} columns"
        )
    return torch.arange(in_features) // size


def _unpacked(packed: Tensor, num_bits: int) -> Tensor:
    """int32 [rows, n] -> int16 [rows, n * 32 / num_bits], the lowest bits first, without a sign."""
    shifts = torch.arange(0, 32, num_bits, dtype=torch.int32)
    values = packed[:, :, None] >> shifts & (1 << num_bits) - 1
    return values.to(torch.int16).flatten(1)


def _in_order(values: Tensor) -> Tensor:
    """AWQ's rows in their own order."""
    places = torch.tensor([_AWQ_ROWS.index(row) for row in range(8)])
    return values.view(len(values), -1, 8)[:, :, places].flatten(1)


def _num_bits(packed: Tensor, in_features: int) -> int:
    for bits in NUM_BITS:
        if packed.dim() == 2 and packed.shape[0] * 32 == in_features * bits:
            return bits
    raise PackingError(f"qweight is {list(packed.shape)}, which is neither 4 nor 8 bits of {in_features} columns")


def _num_words(num_values: int, num_bits: int) -> int:
    if num_values * num_bits % 32:
        raise PackingError(f"{num_values} rows of {num_bits} bits do not fill int32s")
    return num_values * num_bits // 32


def _part(parts: Parts, name: str, dtype: torch.dtype | None = None) -> Tensor:
    if name not in parts:
        raise PackingError(f"{name} is missing")
    if dtype is not None and parts[name].dtype is not dtype:
        raise PackingError(f"{name} has dtype {parts[name].dtype} instead of {dtype}")
    return parts[name]


def _scales(parts: Parts, name: str, num_rows: int) -> Tensor:
    """float32 [groups, N], at least one group."""
    scales = _part(parts, name)
    if not scales.is_floating_point():
        raise PackingError(f"{name} has dtype {scales.dtype}; scales must be floating point")
    if scales.dim() != 2 or scales.shape[0] < 1 or scales.shape[1] != num_rows:
        raise PackingError(f"{name} is {list(scales.shape)}, which is not a number of groups for {num_rows} rows")
    return scales.float()


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise PackingError(f"{name} is {list(tensor.shape)} instead of {list(shape)}")
