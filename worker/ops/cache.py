"""What reads and writes the pool but attention: vectors by token, whole units, and units that are under way."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from worker.batch.int8_cache import vector_size
from worker.batch.paged_pool import ALL_LANDED, NUM_VECTOR_KINDS, PagedPool, StepBatch, StoredTokens
from worker.ops import native, reference
from worker.ops.checks import check_heads, check_int8_blocks, check_stored, check_unit_copy
from worker.ops.head_norms import HeadNorms
from worker.ops.tensor_spec import match

Int32Array = npt.NDArray[np.int32]
_POLL_SECONDS = 1e-4  # where there is no kernel to wait with


def rope_kv_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor | None,
    batch: StepBatch,
    pool: PagedPool,
    layer: int,
    norms: HeadNorms | None = None,
) -> None:
    """Norms and rotates q in place; writes k, normed and rotated, and v to the pool. k and v stay as they are.

    q [T, n_heads, hd], k and v [T, n_kv, hd]: may be views into one fused projection, rows strided, heads dense.
    cos_sin float32 [max_position, rot]: rot / 2 cosines, then rot / 2 sines; rot <= hd, even. Dimension i pairs with
    i + rot / 2 (half-split). None: no rotation. norms: of each head, in q's dtype.
    """
    if not native.has_kernel(q):
        reference.rope_kv_write(q, k, v, cos_sin, batch, pool, layer, norms)
        return
    dtype = native.common_dtype(q, k, v, *(() if norms is None else (norms.q, norms.k)))
    step = native.step_of(batch, pool)
    _, num_heads, _, q_stride, _, k_stride, v_stride = match("q[T,n,d|q,d,1] k[T,m,d|k,d,1] v[T,m,d|v,d,1]", q, k, v)
    rotary_dim = 0 if cos_sin is None else match("cos_sin[P,R|R,1]", cos_sin)[1]
    check_heads(q, len(batch.positions), pool, k.shape[1], rotary_dim)
    native.check_activations(q, pool)
    q_norm = k_norm = 0
    if norms is not None:
        match(f"q_norm[{q.shape[2]}|1] k_norm[{q.shape[2]}|1]", norms.q, norms.k)
        q_norm, k_norm = norms.q.data_ptr(), norms.k.data_ptr()
    native.kernels.rope_kv_write(
        q.data_ptr(), k.data_ptr(), v.data_ptr(), 0 if cos_sin is None else cos_sin.data_ptr(),
        step, layer, num_heads, rotary_dim, q_stride, k_stride, v_stride, dtype,
        q_norm, k_norm, 0.0 if norms is None else norms.eps, native.stream(q),
    )  # fmt: skip


def hidden_write(x: Tensor, tokens: StoredTokens, pool: PagedPool, layer: int) -> None:
    """Stores X of `tokens` in the hidden blocks of their rows. x [N, H], rows may be strided, H <= d_kv."""
    if not native.has_kernel(x):
        reference.hidden_write(x, tokens, pool, layer)
        return
    dtype = native.common_dtype(x)
    num_rows, hidden_size, stride = match("x[N,H|s,1]", x)
    count = check_stored(tokens, pool, hidden_size)
    if tokens.source is None and num_rows != count:
        raise ValueError(f"x has {num_rows} rows for {count} tokens")
    native.check_activations(x, pool)
    native.kernels.hidden_write(
        x.data_ptr(), 0 if tokens.source is None else tokens.source.data_ptr(), tokens.positions.data_ptr(),
        tokens.token_row.data_ptr(), native.pool_of(pool), layer, count, hidden_size, stride, dtype, native.stream(x),
    )  # fmt: skip


def hidden_gather(tokens: StoredTokens, pool: PagedPool, layer: int, hidden_size: int) -> Tensor:
    """One layer's X of stored tokens -> [n, hidden_size], float32 on CPU, in the dtype of the pool elsewhere."""
    if not native.has_kernel(pool.data):
        return reference.hidden_gather(tokens, pool, layer, hidden_size)
    count = check_stored(tokens, pool, hidden_size)
    stream = native.stream(pool.data)
    dtype = torch.float32 if stream == native.CPU else pool.data.dtype
    out = torch.empty(count, hidden_size, dtype=dtype, device=pool.data.device)
    native.kernels.hidden_gather(
        out.data_ptr(), tokens.positions.data_ptr(), tokens.token_row.data_ptr(), native.pool_of(pool), layer, count,
        hidden_size, native.DTYPES[dtype], stream,
    )  # fmt: skip
    return out


def project_rope_write(
    k: Tensor,
    v: Tensor,
    k_norm: Tensor | None,
    norm_eps: float,
    cos_sin: Tensor | None,
    tokens: StoredTokens,
    pool: PagedPool,
    layer: int,
) -> None:
    """k, v [n, n_kv, hd], projected from stored X: norm of k's heads, rotation, both to where the block table says.

    k and v may be views into one product, rows strided, heads dense; they stay as they are. k_norm [hd] or None;
    cos_sin as rope_kv_write() takes it.
    """
    if not native.has_kernel(k):
        reference.project_rope_write(k, v, k_norm, norm_eps, cos_sin, tokens, pool, layer)
        return
    dtype = native.common_dtype(k, v) if k_norm is None else native.common_dtype(k, v, k_norm)
    count, num_kv_heads, head_dim, k_stride, v_stride = match("k[n,m,d|k,d,1] v[n,m,d|v,d,1]", k, v)
    rotary_dim = 0 if cos_sin is None else match("cos_sin[P,R|R,1]", cos_sin)[1]
    check_stored(tokens, pool, num_kv_heads * head_dim)
    check_heads(k, len(tokens.positions), pool, num_kv_heads, rotary_dim)
    native.check_activations(k, pool)
    if k_norm is not None:
        match(f"k_norm[{head_dim}|1]", k_norm)
    native.kernels.project_rope_write(
        k.data_ptr(), v.data_ptr(), 0 if k_norm is None else k_norm.data_ptr(),
        0 if cos_sin is None else cos_sin.data_ptr(), tokens.positions.data_ptr(), tokens.token_row.data_ptr(),
        native.pool_of(pool), layer, count, rotary_dim, k_stride, v_stride, norm_eps, dtype, native.stream(k),
    )  # fmt: skip


def int8_blocks(pool: PagedPool, from_units: Tensor, to_units: Tensor) -> None:
    """K and V of n blocks in int8, as rows in int8 have them: a unit for both. All layers of the units, on CPU.

    from_units int32 [n, num_groups, 2], to_units int32 [n, num_groups], contiguous. A unit may be in both, of any
    blocks; none is written twice. Tokens that nobody has written yet may hold anything.
    """
    if not native.has_kernel(pool.data):
        reference.int8_blocks(pool, from_units, to_units)
        return
    count = check_int8_blocks(pool, from_units, to_units)
    size = pool.block_size * vector_size(pool.num_kv_heads, pool.head_dim, torch.int8)
    rounded = torch.empty(count * pool.num_groups * NUM_VECTOR_KINDS, size, dtype=torch.int8)
    native.kernels.int8_blocks(
        native.pool_of(pool), from_units.data_ptr(), to_units.data_ptr(), count, rounded.data_ptr()
    )


def unit_copy(
    to: Tensor,
    source: Tensor,
    to_units: Tensor | None = None,
    from_units: Tensor | None = None,
    *,
    is_alone: bool = False,
) -> None:
    """to[to_units[i]] = source[from_units[i]], all in one launch. Indices int32 [n]; None: unit i.

    to, source [units, ...], contiguous, units of one size. With CUDA either may be pinned host memory, the indices are
    on the device, and units are multiples of 16 bytes. No unit is written twice, none both read and written.
    is_alone: on CPU the caller's thread copies alone, for copies beside a step.
    """
    indices = [units for units in (to_units, from_units) if units is not None]
    place = next((t for t in (to, source, *indices) if t.is_cuda), to)
    if not native.has_kernel(place):
        reference.unit_copy(to, source, to_units, from_units)
        return
    count = check_unit_copy(to, source, indices, place.device)
    unit_bytes = to[0].numel() * to.element_size() if count else 0
    native.kernels.unit_copy(
        to.data_ptr(), source.data_ptr(), 0 if to_units is None else to_units.data_ptr(),
        0 if from_units is None else from_units.data_ptr(), count, unit_bytes, is_alone, native.stream(place),
    )  # fmt: skip


def make_block_saver(host: Tensor, pool: Tensor) -> Callable[[Int32Array, Int32Array], None]:
    """What copies blocks of U units on CPU: save(slots [n], units [n * U]) makes host[slots[i], j] the pool's unit
    units[i * U + j]. Checked once, here: small models save in every step, and their steps are short.

    host [slots, U, ...], pool [units, ...], contiguous; both must live as long as what is returned.
    """
    if host.shape[2:] != pool.shape[1:] or host.dtype is not pool.dtype:
        raise ValueError(f"units of {pool.dtype} {list(pool.shape[1:])} to {host.dtype} {list(host.shape[2:])}")
    if not (host.is_cpu and pool.is_cpu and host.is_contiguous() and pool.is_contiguous()):
        raise ValueError("what blocks are saved between must be contiguous, on CPU")
    if not native.has_kernel(pool):
        return partial(reference.save_blocks, host, pool)
    unit_bytes = pool[0].numel() * pool.element_size()
    saver = native.kernels.BlockSaver(
        host.data_ptr(), pool.data_ptr(), len(host), len(pool), host.shape[1], unit_bytes
    )  # fmt: skip
    return saver.save


def land(pool: PagedPool, num_groups: int) -> None:
    """Layer groups [0, num_groups) of the units under way may be read; ALL_LANDED: nothing is under way."""
    if native.HAS_KERNELS:
        native.kernels.land(pool.arrivals.num_landed.ctypes.data, num_groups)
    else:
        pool.arrivals.num_landed[0] = num_groups


def wait_for_units(pool: PagedPool, group: int) -> None:
    """Until the units of the layer group are there, as far as they are under way."""
    arrivals = pool.arrivals
    if arrivals.num_landed[0] == ALL_LANDED:
        return
    if native.HAS_KERNELS:
        native.kernels.wait_until_landed(arrivals.num_landed.ctypes.data, group)
    while arrivals.num_landed[0] <= group:
        time.sleep(_POLL_SECONDS)
    if group < len(arrivals.events):
        torch.cuda.current_stream(pool.data.device).wait_event(arrivals.events[group])
