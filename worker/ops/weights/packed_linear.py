"""A weight in the layout that ops.linear() reads fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from worker.batch.host_memory import HugePageMemory
from worker.ops.weights import panels
from worker.ops.weights.rounded_weight import INT4, INT8, RoundedWeight, round_weight


class WeightForm(IntEnum):
    """What the kernel finds in the panels: DType of kernels/include/base/dtype.h."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8_WEIGHTS = 3
    INT8 = 4
    INT4 = 5


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """Made by ops.pack_linear()."""

    weight: Tensor  # on CPU: panels as kernels/include/linear.h says; elsewhere [N, K]
    bias: Tensor | None  # on CPU float32 [columns of all panels], elsewhere [N]
    in_features: int
    out_features: int  # columns of what linear() returns
    panel_width: int  # 0: not packed
    is_gated: bool
    form: WeightForm  # where it is packed


def pack(
    weight: Tensor | RoundedWeight,
    bias: Tensor | None,
    panel_width: int,
    *,
    is_gated: bool = False,
    quantization: str | None = None,
    memory: HugePageMemory | None = None,
) -> PackedLinear:
    """weight [N, K], bias [N] or None; panel_width: columns of a panel, 0 where the device's library multiplies.

    Copies into panels, to `memory` if given, so that the arguments may be freed.

    is_gated: the first half of the rows is a gate, the second half what it gates; linear() then returns
    silu(gate) * up, [T, N / 2].
    quantization: INT8_WEIGHTS: each row is rounded to 255 levels, int8 times a scale. INT8: so is each block of a row,
    INT4: to 16 levels; with both, what it is multiplied with is rounded to 255 as well, in panels only. A weight that
    is rounded already says so itself.
    In panels bfloat16 weights stay bfloat16, all others become float32; the bias becomes float32.
    """
    num_rows, in_features = weight.shape
    if bias is not None and bias.shape != (num_rows,):
        raise ValueError(f"bias has shape {list(bias.shape)}, the weight {list(weight.shape)}")
    if is_gated and num_rows % 2:
        raise ValueError(f"a gated weight has as many rows of each half, not {num_rows} in all")
    out_features = num_rows // 2 if is_gated else num_rows
    if quantization is not None and not isinstance(weight, RoundedWeight):
        dtype, weight = weight.dtype, round_weight(weight.detach(), quantization)
    else:
        dtype = torch.float32 if isinstance(weight, RoundedWeight) else weight.dtype
    if panel_width == 0:
        dense = weight.dequantized().to(dtype) if isinstance(weight, RoundedWeight) else weight
        return PackedLinear(dense, bias, in_features, out_features, 0, is_gated, WeightForm.FLOAT32)

    def order(rows: Tensor) -> Tensor:
        return panels.panel_order(rows, panel_width, is_gated)

    if isinstance(weight, RoundedWeight):
        form, packed = _pack_rounded(weight, order, memory)
    else:
        weight = weight.detach() if weight.dtype is torch.bfloat16 else weight.detach().float()
        form = WeightForm.BFLOAT16 if weight.dtype is torch.bfloat16 else WeightForm.FLOAT32
        packed = panels.pack_panels(order(weight), memory)
    columns = None if bias is None else order(bias.detach().float()[:, None]).flatten().clone()
    return PackedLinear(packed, columns, in_features, out_features, panel_width, is_gated, form)


def _pack_rounded(
    weight: RoundedWeight, order: Callable[[Tensor], Tensor], memory: HugePageMemory | None
) -> tuple[WeightForm, Tensor]:
    integers, scales = order(weight.integers), order(weight.scales)
    if weight.quantization == INT8:
        return WeightForm.INT8, panels.pack_int8_blocks(integers, scales, memory)
    if weight.quantization == INT4:
        return WeightForm.INT4, panels.pack_int4_blocks(integers, scales, memory)
    return WeightForm.INT8_WEIGHTS, panels.pack_int8_panels(integers, scales.squeeze(2), memory)
