"""The torch twin of every kernel: plain, slow, obviously right.

Oracle of tests/kernels and fallback on devices without kernels. Same names and contracts as worker/ops.
T tokens, S sequences; float32 inside, results in the dtype of the input.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from schedcore._core import NO_TOKEN
from worker.batch.int8_cache import dense_vectors, half_of_units, integers_and_scales, quantize_heads
from worker.batch.paged_pool import PagedPool, StepBatch, StoredTokens
from worker.batch.staging import to_device, to_host
from worker.ops.draw import draw, keep_likeliest
from worker.ops.head_norms import HeadNorms
from worker.ops.noise import uniforms

K, V = 0, 1  # vector kinds
_BITS = np.arange(32, dtype=np.int32)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = x.float()  # [..., H]
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    residual.add_(x)
    return rms_norm(residual, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)  # [T, I] each
    return (F.silu(gate) * up).to(gate_up.dtype)


def gemv(x: Tensor, weight: Tensor, bias: Tensor | None, is_gated: bool) -> Tensor:
    product = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    if is_gated:
        gate, up = product.chunk(2, dim=-1)
        product = F.silu(gate) * up
    return product.to(x.dtype)


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
    if norms is not None:
        q.copy_(rms_norm(q, norms.q, norms.eps))
        k = rms_norm(k, norms.k, norms.eps)
    if cos_sin is not None:
        cos, sin = cos_sin[batch.positions.long()].unsqueeze(1).chunk(2, dim=-1)  # [T, 1, rot / 2] each
        q.copy_(_rotate(q, cos, sin))
        k = _rotate(k, cos, sin)
    for kind, vectors in ((K, k), (V, v)):  # [T, n_kv, hd]
        _store(vectors.flatten(1), pool, layer, kind, StoredTokens(batch.token_row, batch.positions))


def paged_attention(
    q: Tensor, batch: StepBatch, pool: PagedPool, layer: int, scale: float, sliding_window: int = 0
) -> Tensor:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    start = batch.query_start.tolist()
    for s, (row, seq_len) in enumerate(zip(batch.rows.tolist(), batch.seq_lens.tolist(), strict=True)):
        queries = slice(start[s], start[s + 1])
        k = _gather(pool, row, layer, K, seq_len)  # [seq_len, n_kv, hd]
        v = _gather(pool, row, layer, V, seq_len)
        out[queries] = _attend(q[queries].float(), k, v, scale, sliding_window).to(q.dtype)
    return out


def hidden_write(x: Tensor, tokens: StoredTokens, pool: PagedPool, layer: int) -> None:
    units, offsets = _locate_hidden(pool, tokens, layer)
    rows = x if tokens.source is None else x[tokens.source.long()]
    _dense(pool)[units, layer % pool.layers_per_unit, offsets, : x.shape[1]] = rows.to(pool.data.dtype)


def hidden_gather(tokens: StoredTokens, pool: PagedPool, layer: int, hidden_size: int) -> Tensor:
    units, offsets = _locate_hidden(pool, tokens, layer)
    x = _dense(pool)[units, layer % pool.layers_per_unit, offsets, :hidden_size]
    return x.float() if x.is_cpu else x


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
    if k_norm is not None:
        k = rms_norm(k, k_norm, norm_eps)
    if cos_sin is not None:
        cos, sin = cos_sin[tokens.positions.long()].unsqueeze(1).chunk(2, dim=-1)  # [n, 1, rot / 2] each
        k = _rotate(k, cos, sin)
    for kind, vectors in ((K, k), (V, v)):  # [n, n_kv, hd]
        _store(vectors.flatten(1), pool, layer, kind, tokens)


def int8_blocks(pool: PagedPool, from_units: Tensor, to_units: Tensor) -> None:
    vectors = _dense(pool)[from_units.long()]  # a copy, [n, groups, 2, F, block_size, d_kv]
    rounded, of_heads = quantize_heads(vectors.view(*vectors.shape[:-1], pool.num_kv_heads, pool.head_dim))
    for kind in (K, V):
        integers, scales = _integers_and_scales(pool, kind, is_int8_row=True)
        integers[to_units.long()] = rounded[:, :, kind].flatten(-2)
        scales[to_units.long()] = of_heads[:, :, kind]


def unit_copy(to: Tensor, source: Tensor, to_units: Tensor | None = None, from_units: Tensor | None = None) -> None:
    n = next((len(units) for units in (to_units, from_units) if units is not None), len(to))
    units = source[:n] if from_units is None else source[from_units.long()]
    to[slice(n) if to_units is None else to_units.long()] = units


def save_blocks(host: Tensor, pool: Tensor, slots: npt.NDArray[np.int32], units: npt.NDArray[np.int32]) -> None:
    host[torch.from_numpy(slots).long()] = pool[torch.from_numpy(units).long().view(-1, host.shape[1])]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates dimension i against i + rot / 2, for i < rot / 2; the rest of the head stays. x [T, heads, hd]."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :].float()
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1).to(x.dtype)


def _dense(pool: PagedPool) -> Tensor:
    """Vectors of a pool that is not of int8: [U, F, block_size, d_kv]."""
    return dense_vectors(pool.data, pool.num_kv_heads * pool.head_dim)


def _integers_and_scales(pool: PagedPool, kind: int, is_int8_row: bool) -> tuple[Tensor, Tensor]:
    """Of a pool of int8, or of the rows in int8 of another."""
    data = half_of_units(pool.data, pool.num_kv_heads, pool.head_dim, kind) if is_int8_row else pool.data
    return integers_and_scales(data, pool.num_kv_heads)


def _locate(
    pool: PagedPool, row: Tensor | int, layer: int, kind: int, positions: Tensor, is_int8_row: bool
) -> tuple[Tensor, int, Tensor]:
    """Unit of each position, layer in it, and offset of each."""
    group = layer // pool.layers_per_unit
    place = group if is_int8_row else 2 * group + kind
    units = pool.block_table.flatten(1, 2)[row, place, positions // pool.block_size]
    return units.long(), layer % pool.layers_per_unit, positions % pool.block_size


def _store(vectors: Tensor, pool: PagedPool, layer: int, kind: int, tokens: StoredTokens) -> None:
    """vectors [n, d_kv]."""
    rows, positions = tokens.token_row.long(), tokens.positions.long()
    if pool.int8_rows is None:
        _store_alike(vectors, pool, layer, kind, rows, positions, is_int8_row=False)
        return
    is_int8 = pool.int8_rows[rows] != 0
    for chosen, is_int8_row in ((is_int8, True), (~is_int8, False)):
        _store_alike(vectors[chosen], pool, layer, kind, rows[chosen], positions[chosen], is_int8_row)


def _store_alike(
    vectors: Tensor, pool: PagedPool, layer: int, kind: int, rows: Tensor, positions: Tensor, is_int8_row: bool
) -> None:
    """Of rows that are all in int8, in a pool that is not, or none of them."""
    at = _locate(pool, rows, layer, kind, positions, is_int8_row)
    if is_int8_row or pool.data.dtype is torch.int8:
        integers, scales = _integers_and_scales(pool, kind, is_int8_row)
        rounded, of_heads = quantize_heads(vectors.view(len(vectors), pool.num_kv_heads, pool.head_dim))
        integers[at], scales[at] = rounded.flatten(1), of_heads
    else:
        _dense(pool)[at] = vectors.to(pool.data.dtype)


def _locate_hidden(pool: PagedPool, tokens: StoredTokens, layer: int) -> tuple[Tensor, Tensor]:
    """Unit and offset of each token's X."""
    places = pool.block_table.flatten(1, 2)  # [rows, 2 * num_groups, max_blocks]
    positions = tokens.positions.long()
    units = places[tokens.token_row.long(), layer // pool.layers_per_unit, positions // pool.block_size]
    return units.long(), positions % pool.block_size


def _gather(pool: PagedPool, row: int, layer: int, kind: int, seq_len: int) -> Tensor:
    """Vectors [0, seq_len) of one sequence as float32 [seq_len, num_kv_heads, head_dim]."""
    positions, shape = torch.arange(seq_len, device=pool.data.device), (seq_len, pool.num_kv_heads, pool.head_dim)
    is_int8_row = pool.int8_rows is not None and bool(pool.int8_rows[row])
    at = _locate(pool, row, layer, kind, positions, is_int8_row)
    if is_int8_row or pool.data.dtype is torch.int8:
        integers, scales = _integers_and_scales(pool, kind, is_int8_row)
        return integers[at].float().view(shape) * scales[at].float()[:, :, None]
    return _dense(pool)[at].float().view(shape)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, sliding_window: int) -> Tensor:
    """q [n, n_heads, hd], the last n of the seq_len positions; k, v [seq_len, n_kv, hd] -> [n, n_heads, hd]."""
    n, n_heads, _ = q.shape
    seq_len, n_kv, _ = k.shape
    k, v = (x.repeat_interleave(n_heads // n_kv, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    query_pos = torch.arange(seq_len - n, seq_len, device=q.device)[:, None]
    key_pos = torch.arange(seq_len, device=q.device)[None, :]
    visible = key_pos <= query_pos
    if sliding_window > 0:
        visible &= key_pos > query_pos - sliding_window
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def allow_tokens(logits: Tensor, rows: npt.NDArray[np.int32], masks: Sequence[npt.NDArray[np.uint32]]) -> None:
    """An eighth of a byte per token crosses to a device, not a byte."""
    device, num_words = logits.device, -(-logits.shape[1] // 32)
    words = to_device(np.stack([mask[:num_words] for mask in masks]).view(np.int32), device)
    bits = (words[:, :, None] >> to_device(_BITS, device)) & 1
    forbidden = bits.flatten(1)[:, : logits.shape[1]] == 0
    at = to_device(rows.astype(np.int64), device)
    logits[at] = logits[at].masked_fill(forbidden, float("-inf"))


def argmax(logits: Tensor) -> npt.NDArray[np.int32]:
    return _to_host(_likeliest(logits))


def _likeliest(logits: Tensor) -> Tensor:
    """NO_TOKEN for rows whose largest logit is not finite; NaN counts as the largest."""
    largest, token_ids = logits.max(-1)
    return token_ids.where(largest.isfinite(), NO_TOKEN)


def draw_tokens(
    logits: Tensor,
    temperature: npt.NDArray[np.float32],
    top_k: npt.NDArray[np.int64],
    top_p: npt.NDArray[np.float32],
    min_p: npt.NDArray[np.float32],
    seed: npt.NDArray[np.uint64],
    index: npt.NDArray[np.int64],
) -> npt.NDArray[np.int32]:
    is_random, is_filtered = temperature > 0, (top_k > 0) | (top_p < 1) | (min_p > 0)
    device = logits.device
    chosen = _likeliest(logits)
    is_random &= (chosen != NO_TOKEN).cpu().numpy()
    for rows in (np.flatnonzero(is_random & ~is_filtered), np.flatnonzero(is_random & is_filtered)):
        if not len(rows):
            continue
        at = torch.from_numpy(rows).to(device)
        probs = (logits[at] / torch.from_numpy(temperature[rows]).to(device)[:, None]).softmax(-1)
        if is_filtered[rows[0]]:
            probs = keep_likeliest(
                probs, *(torch.from_numpy(values[rows]).to(device) for values in (top_k, top_p, min_p))
            )
        chosen[at] = draw(probs, torch.from_numpy(uniforms(seed[rows], index[rows])).to(device))
    return _to_host(chosen)


def _to_host(tokens: Tensor) -> npt.NDArray[np.int32]:
    ids: npt.NDArray[np.int32] = to_host(tokens.to(torch.int32))[0].numpy()
    return ids
