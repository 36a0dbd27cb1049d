"""A weight in panels, as kernels/include/linear.h lays them out, and in int8."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from worker.host_memory import HugePageMemory


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
