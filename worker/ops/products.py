"""Matrix products with a packed weight, and the activation that goes with them."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from worker.batch.host_memory import HugePageMemory
from worker.ops import native, reference
from worker.ops.tensor_spec import match
from worker.ops.weights.packed_linear import PackedLinear, pack
from worker.ops.weights.rounded_weight import RoundedWeight

MAX_GEMV_ROWS = 4  # kernels/include/gemv.h
MAX_GEMV_WEIGHT = 8 << 20  # elements: of larger ones the library is as near to memory's speed, or nearer
_ALIGNMENT = 16  # bytes of a load


def pack_linear(
    weight: Tensor | RoundedWeight,
    bias: Tensor | None = None,
    *,
    is_gated: bool = False,
    quantization: str | None = None,
    memory: HugePageMemory | None = None,
) -> PackedLinear:
    """weight [N, K], bias [N] or None, in the layout that linear() reads fastest here; see packed_linear.py."""
    is_cpu = isinstance(weight, RoundedWeight) or weight.is_cpu
    panel_width = native.kernels.linear_panel_width() if native.HAS_KERNELS and is_cpu else 0
    return pack(weight, bias, panel_width, is_gated=is_gated, quantization=quantization, memory=memory)


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    """x [T, K] -> x @ weight.T + bias, [T, N], or what is_gated makes of it. On CPU x is float32, rows may be strided.

    Where the CPU multiplies bfloat16 (backends avx512_bf16 and avx512_amx), bfloat16 weights and int8 ones that alone
    are rounded meet x rounded to bfloat16; int8 weights of which x is rounded, too, meet int8 everywhere.
    """
    if packed.panel_width == 0:
        return dense_linear(x, packed.weight, packed.bias, is_gated=packed.is_gated)
    tokens, in_features, stride = match("x[T,K|s,1]", x)
    if in_features != packed.in_features or x.dtype is not torch.float32 or not x.is_cpu:
        raise ValueError(f"x is {x.dtype} {list(x.shape)} on {x.device}, expected float32 [T, {packed.in_features}]")
    out = x.new_empty(tokens, packed.out_features)
    native.kernels.linear(
        out.data_ptr(), x.data_ptr(), packed.weight.data_ptr(), 0 if packed.bias is None else packed.bias.data_ptr(),
        tokens, in_features, packed.out_features, stride, packed.out_features, packed.panel_width,
        packed.form, native.DTYPES[x.dtype], native.DTYPES[out.dtype],
        packed.is_gated, False,
    )  # fmt: skip
    return out


def dense_linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, is_gated: bool = False) -> Tensor:
    """Likewise, weight [N, K] as it is (gated: [2 N, K], gate above up): the library's product, or gemv()."""
    if native.stream(x) != native.CPU and len(x) <= MAX_GEMV_ROWS and _is_gemvs(x, weight):
        return gemv(x, weight, bias, is_gated=is_gated)
    product = F.linear(x, weight, bias)
    return silu_mul(product) if is_gated else product


def gemv(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, is_gated: bool = False) -> Tensor:
    """dense_linear() for at most MAX_GEMV_ROWS rows of 16 bits, where the library's are far from memory's speed.

    Rows may be strided, by a multiple of 8 elements as K is. A row's result does not depend on the others. The weight
    is read before the stream's earlier work has ended.
    """
    tokens, in_features, stride, num_weights = match("x[T,K|s,1] weight[N,K|K,1]", x, weight)
    if tokens > MAX_GEMV_ROWS:
        raise ValueError(f"gemv takes at most {MAX_GEMV_ROWS} rows, not {tokens}")
    if not native.has_kernel(x) or native.stream(x) == native.CPU:
        return reference.gemv(x, weight, bias, is_gated)
    dtype = native.common_dtype(x, weight, *(() if bias is None else (bias,)))
    out = x.new_empty(tokens, num_weights // 2 if is_gated else num_weights)
    native.kernels.gemv(
        out.data_ptr(), x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(),
        tokens, in_features, out.shape[1], stride, is_gated, dtype, native.stream(x),
    )  # fmt: skip
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up. gate_up [T, 2 I] contiguous, gate first -> [T, I]."""
    if not native.has_kernel(gate_up):
        return reference.silu_mul(gate_up)
    dtype = native.common_dtype(gate_up)
    tokens, width = match("gate_up[T,W|W,1]", gate_up)
    out = gate_up.new_empty(tokens, width // 2)
    native.kernels.silu_mul(out.data_ptr(), gate_up.data_ptr(), tokens, width // 2, dtype, native.stream(gate_up))
    return out


def _is_gemvs(x: Tensor, weight: Tensor) -> bool:
    bytes_apart = x.element_size() * x.stride(0), weight.element_size() * weight.shape[1]
    places = (x.data_ptr(), weight.data_ptr(), *bytes_apart)
    is_small = x.element_size() == 2 and weight.numel() <= MAX_GEMV_WEIGHT
    return is_small and native.has_kernel(x) and all(place % _ALIGNMENT == 0 for place in places)
