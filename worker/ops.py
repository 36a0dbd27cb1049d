"""Every operation with a kernel of ours. The only file that names one.

Shapes, strides, dtypes and devices are checked here, once, at the door; kernels trust what they get. On devices without
kernels the torch twins of ops_reference.py do the work.

T tokens in the flattened batch. Activations are float32 on CPU, where the pool may be float32, bfloat16 or float16; on
CUDA they have the pool's dtype. Everything raises ValueError for tensors it cannot take.
"""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from worker import ops_reference
from worker.decoder_step import DecoderStep
from worker.host_memory import HugePageMemory
from worker.packed_linear import PackedLinear, pack
from worker.step_arguments import DecoderWeights, DrawParameters, LayerWeights, check_decoder_weights
from worker.tensor_spec import match
from worker.unit_pool import StepBatch, UnitPool

try:
    from worker import _kernels

    _HAS_KERNELS = True
except ImportError:  # not built: the twins serve
    _HAS_KERNELS = False

Int32Array = npt.NDArray[np.int32]

DEFAULT_THREADS = torch.get_num_threads()  # before anybody has set it: as many as there are cores
_CPU = -1  # in the place of a CUDA stream
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # kernels/include/dtype.h
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
    step = _step(batch, pool)
    _, num_heads, _, q_stride, _, k_stride, v_stride = match("q[T,n,d|q,d,1] k[T,m,d|k,d,1] v[T,m,d|v,d,1]", q, k, v)
    rotary_dim = 0 if cos_sin is None else match("cos_sin[P,R|R,1]", cos_sin)[1]
    step.check(q, k.shape[1], rotary_dim)
    _kernels.rope_kv_write(
        q.data_ptr(), k.data_ptr(), v.data_ptr(), 0 if cos_sin is None else cos_sin.data_ptr(),
        step.native, layer, num_heads, rotary_dim, q_stride, k_stride, v_stride, dtype, _stream(q),
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
    dtype = _common_dtype(q)
    step = _step(batch, pool)
    tokens, num_heads, head_dim, q_stride = match("q[T,n,d|s,d,1]", q)
    step.check(q, step.num_kv_heads, 0)
    stream = _stream(q)
    workspace = None
    if stream != _CPU:
        num_bytes = _kernels.paged_attention_workspace_bytes(step.native, num_heads, dtype, stream)
        workspace = torch.empty(num_bytes, dtype=torch.uint8, device=q.device)
    out = q.new_empty(tokens, num_heads, head_dim)
    _kernels.paged_attention(
        out.data_ptr(), q.data_ptr(), step.native, layer, num_heads, q_stride, sliding_window, scale, dtype,
        0 if workspace is None else workspace.data_ptr(), stream,
    )  # fmt: skip
    return out


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
        return ops_reference.argmax(logits)
    num_rows, vocab_size = match("logits[n,V|V,1]", logits)
    tokens = np.empty(num_rows, dtype=np.int32)
    _kernels.argmax(logits.data_ptr(), vocab_size, tokens)
    return tokens


def draw_tokens(logits: Tensor, parameters: DrawParameters) -> Int32Array:
    """logits float32 [n, V], may be overwritten -> tokens [n]. A row's token does not depend on the other rows."""
    p = parameters
    if not _has_token_kernels(logits):
        return ops_reference.draw_tokens(logits, p.temperature, p.top_k, p.top_p, p.min_p, p.seed, p.index)
    num_rows, vocab_size = match("logits[n,V|V,1]", logits)
    if any(len(values) != num_rows for values in (p.temperature, p.top_k, p.top_p, p.min_p, p.seed, p.index)):
        raise ValueError(f"{num_rows} rows of logits need as many of each parameter")
    tokens = np.empty(num_rows, dtype=np.int32)
    _kernels.draw_tokens(
        logits.data_ptr(), vocab_size, p.temperature, p.top_k, p.top_p, p.min_p, p.seed, p.index, tokens
    )
    return tokens


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
        weights.cos_sin.shape[1], weights.norm_eps, pool.head_dim**-0.5,
    )  # fmt: skip
    return DecoderStep(native, hidden_size, vocab_size, max_num_samples, keep=(weights, pool))


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


def _native_pool(pool: UnitPool) -> _kernels.PagedPool:
    units_shape = match("data[U,F,b,D|u,f,D,1] block_table[R,G,2,B|r,g,B,1]", pool.data, pool.block_table)
    _, layers_per_unit, block_size, dim, _, _, _, num_groups, max_blocks, *_ = units_shape
    if pool.data.dtype not in _DTYPES or pool.block_table.dtype is not torch.int32:
        raise ValueError("the pool must be of a floating dtype that kernels have, its block table int32")
    if pool.block_table.device != pool.data.device or dim != pool.num_kv_heads * pool.head_dim:
        raise ValueError("the pool must have vectors of num_kv_heads * head_dim, its block table on the same device")
    if not (pool.data.is_contiguous() and pool.block_table.is_contiguous()):
        raise ValueError("the pool and its block table must be contiguous")
    return _kernels.PagedPool(
        pool.data.data_ptr(), pool.block_table.data_ptr(), layers_per_unit, block_size, pool.num_kv_heads,
        pool.head_dim, num_groups, max_blocks, _DTYPES[pool.data.dtype],
    )  # fmt: skip


class _Step:
    """One batch on one pool, checked, as the kernels take it."""

    __slots__ = ("head_dim", "native", "num_kv_heads", "num_tokens", "pool_dtype")

    def __init__(self, batch: StepBatch, pool: UnitPool) -> None:
        native_pool = _native_pool(pool)
        self.num_tokens, num_seqs = match(
            "positions[T|1] token_row[T|1] rows[S|1] seq_lens[S|1]",
            batch.positions, batch.token_row, batch.rows, batch.seq_lens,
        )  # fmt: skip
        indices = (batch.positions, batch.token_row, batch.rows, batch.query_start, batch.seq_lens)
        if any(t.dtype is not torch.int32 or t.device != pool.data.device for t in indices):
            raise ValueError("the indices of the batch must be int32 and on the device of the pool")
        if batch.query_start.shape != (num_seqs + 1,):
            raise ValueError("query_start must have S + 1 entries")
        self.pool_dtype = pool.data.dtype
        self.num_kv_heads, self.head_dim = pool.num_kv_heads, pool.head_dim
        self.native = _kernels.Step(
            native_pool, batch.positions.data_ptr(), batch.token_row.data_ptr(), batch.rows.data_ptr(),
            batch.query_start.data_ptr(), batch.seq_lens.data_ptr(),
            self.num_tokens, num_seqs, batch.max_query_len, batch.max_seq_len,
        )  # fmt: skip

    def check(self, q: Tensor, num_kv_heads: int, rotary_dim: int) -> None:
        tokens, num_heads, head_dim = q.shape
        if tokens != self.num_tokens or head_dim != self.head_dim or num_kv_heads != self.num_kv_heads:
            raise ValueError(
                f"q {list(q.shape)} and {num_kv_heads} KV heads do not fit a batch of {self.num_tokens} tokens and a "
                f"pool of {self.num_kv_heads} heads of {self.head_dim}"
            )
        if num_heads % num_kv_heads or rotary_dim % 2 or rotary_dim > head_dim:
            raise ValueError(f"{num_heads} heads over {num_kv_heads} KV heads, {rotary_dim} of {head_dim} rotated")
        if not q.is_cpu and q.dtype is not self.pool_dtype:
            raise ValueError(f"on {q.device.type}, q is {q.dtype} but the pool is {self.pool_dtype}")


# The step that the layers are in the middle of. Weak: it keeps no pool alive.
_last_step: tuple[weakref.ref[StepBatch], weakref.ref[UnitPool], _Step] | None = None


def _step(batch: StepBatch, pool: UnitPool) -> _Step:
    global _last_step
    last = _last_step
    if last is not None and last[0]() is batch and last[1]() is pool:
        return last[2]
    step = _Step(batch, pool)
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


def _stream(x: Tensor) -> int:
    return _CPU if x.is_cpu else torch.cuda.current_stream(x.device).cuda_stream
