"""A weight in panels, as kernels/include/linear.h lays them out, and in int8."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from worker.batch.host_memory import HugePageMemory

INT8_BLOCK, INT4_BLOCK = 128, 32  # values with one scale, as in kernels/include/linear.h


def panel_order(rows: Tensor, width: int, is_gated: bool) -> Tensor:
    """[N, K] -> [num_panels, width, K], padded with zeros; gated: gate and up share each panel."""
    parts = rows.chunk(2) if is_gated else (rows,)
    share = width // len(parts)
    padded = [F.pad(part, (0, 0, 0, -part.shape[0] % share)) for part in parts]
    panels = [part.view(-1, share, part.shape[1]) for part in padded]
    return torch.cat(panels, dim=1) if is_gated else panels[0]


def pack_panels(rows: Tensor, memory: HugePageMemory | None) -> Tensor:
    """[panels, width, K] -> [panels, K / 2, width, 2] in bfloat16 or [panels, K, width] in float32, K made even."""
    columns = _columns(rows)
    return _empty(columns.shape, columns.dtype, memory).copy_(columns).view(rows.dtype)


def pack_int8_panels(integers: Tensor, scales: Tensor, memory: HugePageMemory | None) -> Tensor:
    """int8 [panels, width, K], float32 [panels, width] -> int8 [panels, bytes]: [K / 2, width, 2], then the scales."""
    columns = _columns(integers)
    num_panels, num_pairs, width = columns.shape
    packed = _empty((num_panels, (2 * num_pairs + 4) * width), torch.int8, memory)
    packed[:, : 2 * num_pairs * width].view(torch.int16).view(columns.shape).copy_(columns)
    packed[:, 2 * num_pairs * width :].view(torch.float32).copy_(scales)
    return packed


def pack_int8_blocks(integers: Tensor, scales: Tensor, memory: HugePageMemory | None) -> Tensor:
    """int8 [panels, width, K], float32 [panels, width, blocks] -> int8 [panels, bytes], K padded to a multiple of 4.

    Per block [k / 4, width, 4], then the block's scales.
    """
    num_panels, width, in_features = integers.shape
    padded = F.pad(integers, (0, -in_features % 4)).contiguous()
    quads = padded.view(torch.int32).mT  # [panels, K / 4, width]
    packed = _empty((num_panels, (padded.shape[2] + 4 * scales.shape[2]) * width), torch.int8, memory)
    begin = 0
    for block in range(scales.shape[2]):
        of_block = quads[:, block * INT8_BLOCK // 4 : (block + 1) * INT8_BLOCK // 4]
        for part in (of_block.view(torch.float32), scales[:, None, :, block]):  # four bytes an element, both
            end = begin + 4 * part.shape[1] * width
            packed[:, begin:end].view(torch.float32).view(part.shape).copy_(part)
            begin = end
    return packed


def pack_int4_blocks(integers: Tensor, scales: Tensor, memory: HugePageMemory | None) -> Tensor:
    """int8 [panels, width, K], float16 [panels, width, blocks] -> int8 [panels, bytes], K padded to a multiple of 8.

    Per block [k / 8, width, 4] of two each, then the block's scales.
    """
    num_panels, width, in_features = integers.shape
    halves = F.pad(integers + 8, (0, -in_features % 8), value=8).view(num_panels, width, -1, 2, 4)
    columns = (halves[:, :, :, 0] | halves[:, :, :, 1] << 4).contiguous().view(torch.int32).squeeze(3).mT
    num_steps = columns.shape[1]
    packed = _empty((num_panels, (4 * num_steps + 2 * scales.shape[2]) * width), torch.int8, memory)
    begin = 0
    for block in range(scales.shape[2]):
        of_block = columns[:, block * INT4_BLOCK // 8 : (block + 1) * INT4_BLOCK // 8]
        end = begin + 4 * of_block.shape[1] * width
        packed[:, begin:end].view(torch.int32).view(of_block.shape).copy_(of_block)
        packed[:, end : end + 2 * width].view(torch.float16).copy_(scales[:, :, block])
        begin = end + 2 * width
    return packed


def quantize_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] -> int8 [N, K] from -8 to 7 and float16 [N, blocks of INT4_BLOCK].

    The value of a block that is farthest from zero becomes -8: all 16 levels are used.
    """
    rows = F.pad(weight.float(), (0, -weight.shape[1] % INT4_BLOCK)).view(weight.shape[0], -1, INT4_BLOCK)
    farthest = rows.gather(2, rows.abs().argmax(dim=2, keepdim=True))
    scales = (farthest / -8).half().float()
    integers = torch.where(scales == 0, 0, rows / scales).round().clamp(-8, 7).to(torch.int8)
    return integers.flatten(1)[:, : weight.shape[1]], scales.squeeze(2).half()


def quantize_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] -> int8 [N, K] from -127 to 127 and float32 [N, blocks]: as quantize(), a scale per block of a row."""
    rows = F.pad(weight.float(), (0, -weight.shape[1] % INT8_BLOCK)).view(weight.shape[0], -1, INT8_BLOCK)
    scales = rows.abs().amax(dim=2) / 127
    integers = (rows / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, :, None]).round().to(torch.int8)
    return integers.flatten(1)[:, : weight.shape[1]], scales


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] -> int8 [N, K] from -127 to 127 and float32 [N]: a row is its integers times its scale, to the nearest."""
    rows = weight.float()
    scales = rows.abs().amax(dim=1) / 127
    return (rows / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round().to(torch.int8), scales


def _columns(rows: Tensor) -> Tensor:
    """[panels, width, K] -> [panels, K, width], or [panels, K / 2, width] of pairs where elements are small."""
    rows = F.pad(rows, (0, rows.shape[2] % 2)).contiguous()
    pairs = {torch.bfloat16: torch.int32, torch.int8: torch.int16}
    return rows.view(pairs.get(rows.dtype, rows.dtype)).mT


def _empty(shape: tuple[int, ...], dtype: torch.dtype, memory: HugePageMemory | None) -> Tensor:
    return torch.empty(shape, dtype=dtype) if memory is None else memory.empty(shape, dtype)
