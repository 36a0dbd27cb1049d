"""A weight in the layout that ops.linear() reads fastest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from worker import panels
from worker.host_memory import HugePageMemory


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """Made by ops.pack_linear()."""

    weight: Tensor  # on CPU: panels as kernels/include/linear.h says; elsewhere [N, K]
    bias: Tensor | None  # on CPU float32 [columns of all panels], elsewhere [N]
    in_features: int
    out_features: int  # columns of what linear() returns
    panel_width: int  # 0: not packed
    is_gated: bool


def pack(
    weight: Tensor,
    bias: Tensor | None,
    panel_width: int,
    *,
    is_gated: bool = False,
    is_int8: bool = False,
    memory: HugePageMemory | None = None,
) -> PackedLinear:
    """weight [N, K], bias [N] or None; panel_width: columns of a panel, 0 where the device's library multiplies.

    Copies into panels, to `memory` if given, so that the arguments may be freed.

    is_gated: the first half of the rows is a gate, the second half what it gates; linear() then returns
    silu(gate) * up, [T, N / 2].
    is_int8: each row is rounded to 255 levels, int8 times a scale; what it is multiplied with is not.
    In panels bfloat16 weights stay bfloat16, all others become float32; the bias becomes float32.
    """
    num_rows, in_features = weight.shape
    if bias is not None and bias.shape != (num_rows,):
        raise ValueError(f"bias has shape {list(bias.shape)}, the weight {list(weight.shape)}")
    if is_gated and num_rows % 2:
        raise ValueError(f"a gated weight has as many rows of each half, not {num_rows} in all")
    out_features = num_rows // 2 if is_gated else num_rows
    if panel_width == 0:
        if is_int8:
            integers, scales = panels.quantize(weight)
            weight = (integers * scales[:, None]).to(weight.dtype)
        return PackedLinear(weight, bias, in_features, out_features, 0, is_gated)

    def order(rows: Tensor) -> Tensor:
        return panels.panel_order(rows, panel_width, is_gated)

    if is_int8:
        integers, scales = panels.quantize(weight.detach())
        packed = panels.pack_int8_panels(order(integers), order(scales[:, None]).squeeze(2), memory)
    else:
        weight = weight.detach() if weight.dtype is torch.bfloat16 else weight.detach().float()
        packed = panels.pack_panels(order(weight), memory)
    columns = None if bias is None else order(bias.detach().float()[:, None]).flatten().clone()
    return PackedLinear(packed, columns, in_features, out_features, panel_width, is_gated)
