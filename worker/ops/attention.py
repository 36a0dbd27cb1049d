"""Attention over the pool."""

from __future__ import annotations

import torch
from torch import Tensor

from worker.batch.paged_pool import PagedPool, StepBatch
from worker.ops import native, reference
from worker.ops.checks import check_heads
from worker.ops.tensor_spec import match


def paged_attention(
    q: Tensor, batch: StepBatch, pool: PagedPool, layer: int, scale: float, sliding_window: int = 0
) -> Tensor:
    """Causal attention of every query token over its sequence's cache. q [T, n_heads, hd] -> contiguous, same shape.

    A query at position p sees keys (p - sliding_window, p], or [0, p] where sliding_window is 0. Its own key and
    value must be in the pool already. q: rows may be strided, heads are dense.
    """
    if not native.has_kernel(q):
        return reference.paged_attention(q, batch, pool, layer, scale, sliding_window)
    dtype = native.common_dtype(q)
    step = native.step_of(batch, pool)
    tokens, num_heads, head_dim, q_stride = match("q[T,n,d|s,d,1]", q)
    check_heads(q, len(batch.positions), pool, pool.num_kv_heads, 0)
    native.check_activations(q, pool)
    stream = native.stream(q)
    workspace = None  # alive until the launch
    if stream != native.CPU:
        num_bytes = native.kernels.paged_attention_workspace_bytes(step, num_heads, dtype, stream)
        workspace = torch.empty(num_bytes, dtype=torch.uint8, device=q.device)
    out = q.new_empty(tokens, num_heads, head_dim)
    address = 0 if workspace is None else workspace.data_ptr()
    native.kernels.paged_attention(
        out.data_ptr(), q.data_ptr(), step, layer, num_heads, q_stride, sliding_window, scale, dtype, address, stream
    )
    return out
