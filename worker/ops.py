"""Every operation with a kernel of ours. The only file that names one.

Shapes, strides, dtypes and devices are checked here, once, at the door; kernels trust what they get. On devices without
kernels the torch twins of ops_reference.py do the work.

T tokens in the flattened batch. Activations are float32 on CPU, where the pool may be float32, bfloat16 or float16; on
CUDA they have the pool's dtype. Everything raises ValueError for tensors it cannot take.
"""

from __future__ import annotations

import time
import weakref
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from worker import ops_reference
from worker.decoder_step import DecoderStep
from worker.host_memory import HugePageMemory
from worker.packed_linear import PackedLinear, pack
from worker.pool_checks import check_batch, check_heads, check_pool, check_stored, check_unit_copy
from worker.staging import Parcel, to_host
from worker.step_arguments import DecoderWeights, DrawParameters, LayerWeights, check_decoder_weights
from worker.tensor_spec import match
from worker.unit_pool import ALL_LANDED, StepBatch, StoredTokens, UnitPool

try:
    from worker import _kernels

    _HAS_KERNELS = True
except ImportError:  # not built: the twins serve
    _HAS_KERNELS = False

Int32Array = npt.NDArray[np.int32]

DEFAULT_THREADS = torch.get_num_threads()  # before anybody has set it: as many as there are cores
_CPU = -1  # in the place of a CUDA stream
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # kernels/include/dtype.h
_POLL_SECONDS = 1e-4  # where there is no kernel to wait with
_WEIGHT_DTYPES = {**_DTYPES, torch.int8: 3}


def backend(device: torch.device) -> str:
    """What runs the operations on this device: "avx512_bf16", "avx512", "avx2", "generic", "cuda" or "torch"."""
    if not _HAS_KERNELS:
        return "torch"
    if device.type == "cpu":
        return _kernels.isa()
    return "cuda" if device.type == "cuda" and _kernels.has_cuda else "torch"


def set_num_threads(n: int) -> None:
    """CPU threads that an operation may use, the caller's included.

    With our kernels they are of our pool, and torch keeps to the caller's: the threads of torch's pool spin for a while
    after each of its operations, and two pools that spin on the same cores stall each other for milliseconds.
    """
    torch.set_num_threads(1 if _HAS_KERNELS else n)
    if _HAS_KERNELS:
        _kernels.set_num_threads(n)


def num_threads() -> int:
    return _kernels.num_threads() if _HAS_KERNELS else torch.get_num_threads()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, H] or [T, heads, H] (rows may be strided), weight [H] -> contiguous, same shape."""
    if not _has_kernel(x):
        return ops_reference.rms_norm(x, weight, eps)
    dtype = _common_dtype(x, weight)
    if x.dim() == 2:
        outer, hidden, outer_stride = match("x[T,H|s,1] weight[H|1]", x, weight)
        inner = inner_stride = 1
    else:
        outer, inner, hidden, outer_stride, inner_stride = match("x[T,n,H|s,t,1] weight[H|1]", x, weight)
    out = torch.empty_like(x) if x.is_contiguous() else x.new_empty(x.shape)
    _kernels.rms_norm(
        out.data_ptr(), x.data_ptr(), weight.data_ptr(), 0,
        outer, inner, hidden, outer_stride, inner_stride, eps, dtype, _stream(x),
    )  # fmt: skip
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x in place, then rms_norm(residual). x [T, H], residual [T, H] contiguous -> contiguous [T, H]."""
    if not _has_kernel(x):
        return ops_reference.add_rms_norm(x, residual, weight, eps)
    dtype = _common_dtype(x, residual, weight)
    tokens, hidden, stride = match("x[T,H|s,1] residual[T,H|H,1] weight[H|1]", x, residual, weight)
    out = torch.empty_like(residual)
    _kernels.rms_norm(
        out.data_ptr(), x.data_ptr(), weight.data_ptr(), residual.data_ptr(),
        tokens, 1, hidden, stride, 1, eps, dtype, _stream(x),
    )  # fmt: skip
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up. gate_up [T, 2 I] contiguous, gate first -> [T, I]."""
    if not _has_kernel(gate_up):
        return ops_reference.silu_mul(gate_up)
    dtype = _common_dtype(gate_up)
    tokens, width = match("gate_up[T,W|W,1]", gate_up)
    out = gate_up.new_empty(tokens, width // 2)
    _kernels.silu_mul(out.data_ptr(), gate_up.data_ptr(), tokens, width // 2, dtype, _stream(gate_up))
    return out


def rope_kv_write(
    q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor | None, batch: StepBatch, pool: UnitPool, layer: int
) -> None:
    """Rotates q in place; writes the rotated k, and v, to the pool. k and v stay as they are.

    q [T, n_heads, hd], k and v [T, n_kv, hd]: may be views into one fused projection, rows strided, heads dense.
    cos_sin float32 [max_position, rot]: rot / 2 cosines, then rot / 2 sines; rot <= hd, even. Dimension i pairs with
    i + rot / 2 (half-split). None: no rotation.
    """
    if not _has_kernel(q):
        ops_reference.rope_kv_write(q, k, v, cos_sin, batch, pool, layer)
        return
    dtype = _common_dtype(q, k, v)
    step = _native_step(batch, pool)
    _, num_heads, _, q_stride, _, k_stride, v_stride = match("q[T,n,d|q,d,1] k[T,m,d|k,d,1] v[T,m,d|v,d,1]", q, k, v)
    rotary_dim = 0 if cos_sin is None else match("cos_sin[P,R|R,1]", cos_sin)[1]
    check_heads(q, len(batch.positions), pool, k.shape[1], rotary_dim)
    _check_activations(q, pool)
    _kernels.rope_kv_write(
        q.data_ptr(), k.data_ptr(), v.data_ptr(), 0 if cos_sin is None else cos_sin.data_ptr(),
        step, layer, num_heads, rotary_dim, q_stride, k_stride, v_stride, dtype, _stream(q),
    )  # fmt: skip


def paged_attention(
    q: Tensor, batch: StepBatch, pool: UnitPool, layer: int, scale: float, sliding_window: int = 0
) -> Tensor:
    """Causal attention of every query token over its sequence's cache. q [T, n_heads, hd] -> contiguous, same shape.

    A query at position p sees keys (p - sliding_window, p], or [0, p] where sliding_window is 0. Its own key and
    value must be in the pool already. q: rows may be strided, heads are dense.
    """
    if not _has_kernel(q):
        return ops_reference.paged_attention(q, batch, pool, layer, scale, sliding_window)
    call = _attention(q, batch, pool, layer, scale, sliding_window)
    _kernels.paged_attention(*call.arguments, call.stream)
    return call.out


def recompute_decode(
    q: Tensor,
    batch: StepBatch,
    pool: UnitPool,
    layer: int,
    scale: float,
    sliding_window: int = 0,
    *,
    num_decodes: int,
    recompute_threads: int,
    side_stream: int = 0,
) -> Tensor:
    """paged_attention() of a batch whose first num_decodes sequences have one query token each, both parts at once.

    recompute_threads of each block's 256, a multiple of 32, are for the other sequences, the rest for the decodes; 0:
    both have launches of their own, those of the decodes on side_stream, a CUDA stream. CPU and float32 have no such
    kernel, and attend as they always do.
    """
    if not _has_kernel(q) or _stream(q) == _CPU or q.dtype is torch.float32:
        return paged_attention(q, batch, pool, layer, scale, sliding_window)
    split = num_decodes, recompute_threads
    call = _attention(q, batch, pool, layer, scale, sliding_window, split)
    _kernels.recompute_decode(*call.arguments, *split, call.stream, side_stream)
    return call.out


class _AttentionCall(NamedTuple):
    """What the kernels of attention are called with."""

    out: Tensor
    workspace: Tensor | None  # alive until the launch
    arguments: tuple[int, int, _kernels.Step, int, int, int, int, float, int, int]
    stream: int


def _attention(
    q: Tensor,
    batch: StepBatch,
    pool: UnitPool,
    layer: int,
    scale: float,
    sliding_window: int,
    split: tuple[int, int] = (0, 0),
) -> _AttentionCall:
    """split: num_decodes, recompute_threads."""
    dtype = _common_dtype(q)
    step = _native_step(batch, pool)
    tokens, num_heads, head_dim, q_stride = match("q[T,n,d|s,d,1]", q)
    check_heads(q, len(batch.positions), pool, pool.num_kv_heads, 0)
    _check_activations(q, pool)
    stream = _stream(q)
    workspace = None
    if stream != _CPU:
        num_bytes = _kernels.paged_attention_workspace_bytes(step, num_heads, dtype, *split, stream)
        workspace = torch.empty(num_bytes, dtype=torch.uint8, device=q.device)
    out = q.new_empty(tokens, num_heads, head_dim)
    address = 0 if workspace is None else workspace.data_ptr()
    arguments = (out.data_ptr(), q.data_ptr(), step, layer, num_heads, q_stride, sliding_window, scale, dtype, address)
    return _AttentionCall(out, workspace, arguments, stream)


def hidden_write(x: Tensor, tokens: StoredTokens, pool: UnitPool, layer: int) -> None:
    """Stores X of `tokens` in the hidden blocks of their rows. x [N, H], rows may be strided, H <= d_kv."""
    if not _has_kernel(x):
        ops_reference.hidden_write(x, tokens, pool, layer)
        return
    dtype = _common_dtype(x)
    num_rows, hidden_size, stride = match("x[N,H|s,1]", x)
    count = check_stored(tokens, pool, hidden_size)
    if tokens.source is None and num_rows != count:
        raise ValueError(f"x has {num_rows} rows for {count} tokens")
    _check_activations(x, pool)
    _kernels.hidden_write(
        x.data_ptr(), 0 if tokens.source is None else tokens.source.data_ptr(), tokens.positions.data_ptr(),
        tokens.token_row.data_ptr(), _native_pool(pool), layer, count, hidden_size, stride, dtype, _stream(x),
    )  # fmt: skip


def hidden_gather(tokens: StoredTokens, pool: UnitPool, layer: int, hidden_size: int) -> Tensor:
    """One layer's X of stored tokens -> [n, hidden_size], float32 on CPU, in the dtype of the pool elsewhere."""
    if not _has_kernel(pool.data):
        return ops_reference.hidden_gather(tokens, pool, layer, hidden_size)
    count = check_stored(tokens, pool, hidden_size)
    stream = _stream(pool.data)
    dtype = torch.float32 if stream == _CPU else pool.data.dtype
    out = torch.empty(count, hidden_size, dtype=dtype, device=pool.data.device)
    _kernels.hidden_gather(
        out.data_ptr(), tokens.positions.data_ptr(), tokens.token_row.data_ptr(), _native_pool(pool), layer, count,
        hidden_size, _DTYPES[dtype], stream,
    )  # fmt: skip
    return out


def project_rope_write(
    k: Tensor,
    v: Tensor,
    k_norm: Tensor | None,
    norm_eps: float,
    cos_sin: Tensor | None,
    tokens: StoredTokens,
    pool: UnitPool,
    layer: int,
) -> None:
    """k, v [n, n_kv, hd], projected from stored X: norm of k's heads, rotation, both to where the block table says.

    k and v may be views into one product, rows strided, heads dense; they stay as they are. k_norm [hd] or None;
    cos_sin as rope_kv_write() takes it.
    """
    if not _has_kernel(k):
        ops_reference.project_rope_write(k, v, k_norm, norm_eps, cos_sin, tokens, pool, layer)
        return
    dtype = _common_dtype(k, v) if k_norm is None else _common_dtype(k, v, k_norm)
    count, num_kv_heads, head_dim, k_stride, v_stride = match("k[n,m,d|k,d,1] v[n,m,d|v,d,1]", k, v)
    rotary_dim = 0 if cos_sin is None else match("cos_sin[P,R|R,1]", cos_sin)[1]
    check_stored(tokens, pool, num_kv_heads * head_dim)
    check_heads(k, len(tokens.positions), pool, num_kv_heads, rotary_dim)
    _check_activations(k, pool)
    if k_norm is not None:
        match(f"k_norm[{head_dim}|1]", k_norm)
    _kernels.project_rope_write(
        k.data_ptr(), v.data_ptr(), 0 if k_norm is None else k_norm.data_ptr(),
        0 if cos_sin is None else cos_sin.data_ptr(), tokens.positions.data_ptr(), tokens.token_row.data_ptr(),
        _native_pool(pool), layer, count, rotary_dim, k_stride, v_stride, norm_eps, dtype, _stream(k),
    )  # fmt: skip


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
    if not _has_kernel(place):
        ops_reference.unit_copy(to, source, to_units, from_units)
        return
    count = check_unit_copy(to, source, indices, place.device)
    unit_bytes = to[0].numel() * to.element_size() if count else 0
    _kernels.unit_copy(
        to.data_ptr(), source.data_ptr(), 0 if to_units is None else to_units.data_ptr(),
        0 if from_units is None else from_units.data_ptr(), count, unit_bytes, is_alone, _stream(place),
    )  # fmt: skip


def pack_linear(
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    is_gated: bool = False,
    is_int8: bool = False,
    memory: HugePageMemory | None = None,
) -> PackedLinear:
    """weight [N, K], bias [N] or None, in the layout that linear() reads fastest here; see packed_linear.py."""
    panel_width = _kernels.linear_panel_width() if _HAS_KERNELS and weight.is_cpu else 0
    return pack(weight, bias, panel_width, is_gated=is_gated, is_int8=is_int8, memory=memory)


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    """x [T, K] -> x @ weight.T + bias, [T, N], or what is_gated makes of it. On CPU x is float32, rows may be strided.

    Where the CPU multiplies bfloat16 (backend avx512_bf16), bfloat16 and int8 weights meet x rounded to bfloat16.
    """
    if packed.panel_width == 0:
        product = F.linear(x, packed.weight, packed.bias)
        return silu_mul(product) if packed.is_gated else product
    tokens, in_features, stride = match("x[T,K|s,1]", x)
    if in_features != packed.in_features or x.dtype is not torch.float32 or not x.is_cpu:
        raise ValueError(f"x is {x.dtype} {list(x.shape)} on {x.device}, expected float32 [T, {packed.in_features}]")
    out = x.new_empty(tokens, packed.out_features)
    _kernels.linear(
        out.data_ptr(), x.data_ptr(), packed.weight.data_ptr(), 0 if packed.bias is None else packed.bias.data_ptr(),
        tokens, in_features, packed.out_features, stride, packed.out_features, packed.panel_width,
        _WEIGHT_DTYPES[packed.weight.dtype], _DTYPES[x.dtype], _DTYPES[out.dtype], packed.is_gated, False,
    )  # fmt: skip
    return out


def argmax(logits: Tensor) -> Int32Array:
    """logits float32 [n, V] -> the first of the largest of each row, [n]."""
    if not _has_token_kernels(logits):
        return ops_reference.argmax(logits)  # on CUDA too: torch's is as fast as memory
    num_rows, vocab_size = match("logits[n,V|V,1]", logits)
    tokens = np.empty(num_rows, dtype=np.int32)
    _kernels.argmax(logits.data_ptr(), vocab_size, tokens)
    return tokens


def draws_on_device(x: Tensor) -> bool:
    """Whether draw_tokens() of logits that are where x is reads its parameters on the device."""
    return _has_kernel(x) and _stream(x) != _CPU


def draw_tokens(logits: Tensor, parameters: DrawParameters, drawing: Parcel | None = None) -> Int32Array:
    """logits float32 [n, V], may be overwritten -> tokens [n]. A row's token does not depend on the other rows.

    drawing: parameters.parcel(), where it has been sent to the device.
    """
    p = parameters
    if not _has_kernel(logits) or logits.dtype is not torch.float32:
        return ops_reference.draw_tokens(logits, p.temperature, p.top_k, p.top_p, p.min_p, p.seed, p.index)
    num_rows, vocab_size = match("logits[n,V|V,1]", logits)
    if any(len(values) != num_rows for values in (p.temperature, p.top_k, p.top_p, p.min_p, p.seed, p.index)):
        raise ValueError(f"{num_rows} rows of logits need as many of each parameter")
    if _stream(logits) != _CPU:
        return _draw_on_device(logits, drawing or p.parcel())
    tokens = np.empty(num_rows, dtype=np.int32)
    _kernels.draw_tokens(
        logits.data_ptr(), vocab_size, p.temperature, p.top_k, p.top_p, p.min_p, p.seed, p.index, tokens
    )
    return tokens


def _draw_on_device(logits: Tensor, drawing: Parcel) -> Int32Array:
    """Only the tokens come back."""
    if not drawing.is_sent:
        drawing.send_alone(logits.device)
    temperature, top_k, top_p, min_p, seed, index = (tensor.data_ptr() for tensor in drawing.tensors)
    tokens = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    _kernels.draw_tokens_on_device(
        tokens.data_ptr(), logits.data_ptr(), len(logits), logits.shape[1], temperature, top_k, top_p, min_p, seed,
        index, _stream(logits),
    )  # fmt: skip
    ids: Int32Array = to_host(tokens)[0].numpy()
    return ids


def _has_token_kernels(logits: Tensor) -> bool:
    return _HAS_KERNELS and logits.is_cpu and logits.dtype is torch.float32


def has_decoder_step(weight: PackedLinear) -> bool:
    """Whether make_decoder_step() takes models with weights like this one."""
    return weight.panel_width > 0


def make_decoder_step(weights: DecoderWeights, pool: UnitPool, max_num_samples: int) -> DecoderStep:
    """A whole decoder on CPU as one native call, with the kernels that the operations above have.

    Weights are checked here, once; arrays of a step are the core's and are not. max_num_samples: of tokens whose logits
    a step computes.
    """
    check_decoder_weights(weights, pool)
    vocab_size, hidden_size = weights.embedding.shape
    native = _kernels.Decoder(
        _native_pool(pool), weights.embedding.data_ptr(), _DTYPES[weights.embedding.dtype],
        weights.cos_sin.data_ptr(), [_native_layer(layer) for layer in weights.layers],
        weights.final_norm.data_ptr(), _native_linear(weights.head), hidden_size, weights.num_heads,
        weights.cos_sin.shape[1], weights.norm_eps, pool.head_dim**-0.5, pool.arrivals.num_landed.ctypes.data,
    )  # fmt: skip
    return DecoderStep(native, hidden_size, vocab_size, max_num_samples, keep=(weights, pool))


def land(pool: UnitPool, num_groups: int) -> None:
    """Layer groups [0, num_groups) of the units under way may be read; ALL_LANDED: nothing is under way."""
    if _HAS_KERNELS:
        _kernels.land(pool.arrivals.num_landed.ctypes.data, num_groups)
    else:
        pool.arrivals.num_landed[0] = num_groups


def wait_for_units(pool: UnitPool, group: int) -> None:
    """Until the units of the layer group are there, as far as they are under way."""
    arrivals = pool.arrivals
    if arrivals.num_landed[0] == ALL_LANDED:
        return
    if _HAS_KERNELS:
        _kernels.wait_until_landed(arrivals.num_landed.ctypes.data, group)
    while arrivals.num_landed[0] <= group:
        time.sleep(_POLL_SECONDS)
    if group < len(arrivals.events):
        torch.cuda.current_stream(pool.data.device).wait_event(arrivals.events[group])


def _native_linear(linear: PackedLinear) -> _kernels.LinearWeight:
    bias = 0 if linear.bias is None else linear.bias.data_ptr()
    return _kernels.LinearWeight(
        linear.weight.data_ptr(), bias, linear.in_features, linear.out_features, linear.panel_width,
        _WEIGHT_DTYPES[linear.weight.dtype], linear.is_gated,
    )  # fmt: skip


def _native_layer(layer: LayerWeights) -> _kernels.DecoderLayer:
    q_norm, k_norm = (0 if norm is None else norm.data_ptr() for norm in (layer.q_norm, layer.k_norm))
    return _kernels.DecoderLayer(
        layer.attention_norm.data_ptr(), _native_linear(layer.qkv), q_norm, k_norm, _native_linear(layer.output),
        layer.sliding_window, layer.mlp_norm.data_ptr(), _native_linear(layer.gate_up), _native_linear(layer.down),
    )  # fmt: skip


# By identity; an entry ends with its pool.
_native_pools: dict[int, tuple[weakref.ref[UnitPool], _kernels.PagedPool]] = {}


def _native_pool(pool: UnitPool) -> _kernels.PagedPool:
    key = id(pool)
    known = _native_pools.get(key)
    if known is None:
        known = (weakref.ref(pool, lambda _: _native_pools.pop(key, None)), _make_native_pool(pool))
        _native_pools[key] = known
    return known[1]


def _make_native_pool(pool: UnitPool) -> _kernels.PagedPool:
    layers_per_unit, block_size, num_groups, max_blocks = check_pool(pool)
    return _kernels.PagedPool(
        pool.data.data_ptr(), pool.block_table.data_ptr(), layers_per_unit, block_size, pool.num_kv_heads,
        pool.head_dim, num_groups, max_blocks, _DTYPES[pool.data.dtype],
    )  # fmt: skip


# The step that the layers are in the middle of. Weak: it keeps no pool alive.
_last_step: tuple[weakref.ref[StepBatch], weakref.ref[UnitPool], _kernels.Step] | None = None


def _native_step(batch: StepBatch, pool: UnitPool) -> _kernels.Step:
    global _last_step
    last = _last_step
    if last is not None and last[0]() is batch and last[1]() is pool:
        return last[2]
    num_tokens, num_seqs = check_batch(batch, pool)
    step = _kernels.Step(
        _native_pool(pool), batch.positions.data_ptr(), batch.token_row.data_ptr(), batch.rows.data_ptr(),
        batch.query_start.data_ptr(), batch.seq_lens.data_ptr(),
        num_tokens, num_seqs, batch.max_query_len, batch.max_seq_len,
    )  # fmt: skip
    _last_step = (weakref.ref(batch), weakref.ref(pool), step)
    return step


def _has_kernel(x: Tensor) -> bool:
    return _HAS_KERNELS and (x.is_cpu or (x.is_cuda and _kernels.has_cuda))


def _common_dtype(x: Tensor, *others: Tensor) -> int:
    dtype = x.dtype
    for other in others:
        if other.dtype is not dtype or other.is_cpu is not x.is_cpu:
            raise ValueError(f"expected {dtype} on {x.device}, got {other.dtype} on {other.device}")
    if x.is_cpu and dtype is not torch.float32:
        raise ValueError(f"on CPU activations are float32, not {dtype}")
    if dtype not in _DTYPES:
        raise ValueError(f"no kernel for {dtype}")
    return _DTYPES[dtype]


def _check_activations(x: Tensor, pool: UnitPool) -> None:
    if not x.is_cpu and x.dtype is not pool.data.dtype:
        raise ValueError(f"on {x.device.type}, activations are {x.dtype} but the pool is {pool.data.dtype}")


def _stream(x: Tensor) -> int:
    return _CPU if x.is_cpu else torch.cuda.current_stream(x.device).cuda_stream
