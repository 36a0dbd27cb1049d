"""RMSNorm, alone and behind the residual addition."""

from __future__ import annotations

import torch
from torch import Tensor

from worker.ops import native, reference
from worker.ops.tensor_spec import match


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, H] or [T, heads, H] (rows may be strided), weight [H] -> contiguous, same shape."""
    if not native.has_kernel(x):
        return reference.rms_norm(x, weight, eps)
    dtype = native.common_dtype(x, weight)
    if x.dim() == 2:
        outer, hidden, outer_stride = match("x[T,H|s,1] weight[H|1]", x, weight)
        inner = inner_stride = 1
    else:
        outer, inner, hidden, outer_stride, inner_stride = match("x[T,n,H|s,t,1] weight[H|1]", x, weight)
    out = torch.empty_like(x) if x.is_contiguous() else x.new_empty(x.shape)
    native.kernels.rms_norm(
        out.data_ptr(), x.data_ptr(), weight.data_ptr(), 0,
        outer, inner, hidden, outer_stride, inner_stride, eps, dtype, native.stream(x),
    )  # fmt: skip
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x in place, then rms_norm(residual). x [T, H], residual [T, H] contiguous -> contiguous [T, H]."""
    if not native.has_kernel(x):
        return reference.add_rms_norm(x, residual, weight, eps)
    dtype = native.common_dtype(x, residual, weight)
    tokens, hidden, stride = match("x[T,H|s,1] residual[T,H|H,1] weight[H|1]", x, residual, weight)
    out = torch.empty_like(residual)
    native.kernels.rms_norm(
        out.data_ptr(), x.data_ptr(), weight.data_ptr(), residual.data_ptr(),
        tokens, 1, hidden, stride, 1, eps, dtype, native.stream(x),
    )  # fmt: skip
    return out
