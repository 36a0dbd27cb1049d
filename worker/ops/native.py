"""The only file that names the native kernels: what they are on this machine, and what they are called with."""

from __future__ import annotations

import torch
from torch import Tensor

from worker.batch.paged_pool import PagedPool, StepBatch
from worker.ops.checks import check_batch, check_pool

try:
    from worker import _kernels as kernels

    HAS_KERNELS = True
except ImportError:  # not built: the twins serve
    HAS_KERNELS = False

__all__ = ["HAS_KERNELS", "kernels"]  # of what is imported

DEFAULT_THREADS = torch.get_num_threads()  # before anybody has set it: as many as there are cores
CPU = -1  # in the place of a CUDA stream
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # kernels/include/base/dtype.h
POOL_DTYPES = DTYPES | {torch.int8: 3}


def backend(device: torch.device) -> str:
    """What runs the operations on this device: "cuda", "torch", or of the CPU's instruction sets the best that we have.

    These are avx512_amx, avx512_bf16, avx512_vnni, avx512, avx2 and generic.
    """
    if not HAS_KERNELS:
        return "torch"
    if device.type == "cpu":
        return kernels.isa()
    return "cuda" if device.type == "cuda" and kernels.has_cuda else "torch"


def set_num_threads(n: int) -> None:
    """CPU threads that an operation may use, the caller's included.

    With our kernels they are of our pool, and torch keeps to the caller's: the threads of torch's pool spin for a while
    after each of its operations, and two pools that spin on the same cores stall each other for milliseconds.
    """
    torch.set_num_threads(1 if HAS_KERNELS else n)
    if HAS_KERNELS:
        kernels.set_num_threads(n)


def num_threads() -> int:
    return kernels.num_threads() if HAS_KERNELS else torch.get_num_threads()


def has_kernel(x: Tensor) -> bool:
    return HAS_KERNELS and (x.is_cpu or (x.is_cuda and kernels.has_cuda))


def common_dtype(x: Tensor, *others: Tensor) -> int:
    dtype = x.dtype
    for other in others:
        if other.dtype is not dtype or other.is_cpu is not x.is_cpu:
            raise ValueError(f"expected {dtype} on {x.device}, got {other.dtype} on {other.device}")
    if x.is_cpu and dtype is not torch.float32:
        raise ValueError(f"on CPU activations are float32, not {dtype}")
    if dtype not in DTYPES:
        raise ValueError(f"no kernel for {dtype}")
    return DTYPES[dtype]


def check_activations(x: Tensor, pool: PagedPool) -> None:
    if not x.is_cpu and x.dtype is not pool.data.dtype:
        raise ValueError(f"on {x.device.type}, activations are {x.dtype} but the pool is {pool.data.dtype}")


def stream(x: Tensor) -> int:
    return CPU if x.is_cpu else torch.cuda.current_stream(x.device).cuda_stream


def pool_of(pool: PagedPool) -> kernels.PagedPool:
    native: kernels.PagedPool | None = pool.native.made
    if native is None:
        native = pool.native.made = _make_native_pool(pool)
    return native


def _make_native_pool(pool: PagedPool) -> kernels.PagedPool:
    layers_per_unit, block_size, num_groups, max_blocks = check_pool(pool)
    return kernels.PagedPool(
        pool.data.data_ptr(), pool.block_table.data_ptr(), layers_per_unit, block_size, pool.num_kv_heads,
        pool.head_dim, num_groups, max_blocks, pool.data.shape[-1], POOL_DTYPES[pool.data.dtype],
        0 if pool.int8_rows is None else pool.int8_rows.data_ptr(),
    )  # fmt: skip


def step_of(batch: StepBatch, pool: PagedPool) -> kernels.Step:
    """Made by the first layer that asks, for all of them."""
    native = batch.native
    if native.pool is not pool:
        num_tokens, num_seqs = check_batch(batch, pool)
        native.made = kernels.Step(
            pool_of(pool), batch.positions.data_ptr(), batch.token_row.data_ptr(), batch.rows.data_ptr(),
            batch.query_start.data_ptr(), batch.seq_lens.data_ptr(),
            num_tokens, num_seqs, batch.max_query_len, batch.max_seq_len,
        )  # fmt: skip
        native.pool = pool
    step: kernels.Step = native.made
    return step
