from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.kernel_device import FLOATS, KernelDevice
from fakes.paged_batch import PagedBatch, Sequence, make_paged_batch
from worker import ops
from worker.batch.paged_pool import PagedPool, StoredTokens
from worker.ops import reference

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
MIXED = [Sequence(1, 37), Sequence(1, 1), Sequence(20, 20), Sequence(5, 64)]
ragged = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def cos_sin_table(rotary_dim: int, device: str) -> torch.Tensor:
    angles = torch.arange(256)[:, None] * 10000.0 ** (-torch.arange(rotary_dim // 2) / (rotary_dim // 2))
    return torch.cat((angles.cos(), angles.sin()), dim=1).to(device)


def empty(pool: PagedPool) -> PagedPool:
    return replace(pool, data=torch.full_like(pool.data, torch.nan))


def tokens_of(paged: PagedBatch) -> StoredTokens:
    return StoredTokens(paged.batch.token_row, paged.batch.positions)


def assert_equals_twin(
    device: KernelDevice, rotary_dim: int | None, is_normed: bool, gap: int = 0, **shape: object
) -> None:
    """On a product with `gap` elements before k of each row."""
    paged = make_paged_batch(MIXED, device=device.torch_name, **shape)  # type: ignore[arg-type]
    heads, head_dim = paged.pool.num_kv_heads, paged.pool.head_dim
    dtype = device.activation_dtype(paged.pool.data.dtype)
    product = torch.randn(paged.num_tokens, gap + 2 * heads * head_dim, device=device.torch_name).to(dtype)
    k, v = product[:, gap:].unflatten(1, (2 * heads, head_dim)).split(heads, dim=1)
    norm = torch.randn(head_dim, device=device.torch_name).to(dtype) if is_normed else None
    table = None if rotary_dim is None else cos_sin_table(rotary_dim, device.torch_name)
    before = product.clone()
    ours, twin = empty(paged.pool), empty(paged.pool)
    ops.project_rope_write(k, v, norm, 1e-6, table, tokens_of(paged), ours, 0)
    reference.project_rope_write(k, v, norm, 1e-6, table, tokens_of(paged), twin, 0)
    assert torch.equal(product, before)
    tolerance = TOLERANCE[ours.data.dtype]
    torch.testing.assert_close(ours.data, twin.data, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize("pool_dtype", FLOATS)
@pytest.mark.parametrize(("heads", "head_dim"), [(4, 32), (12, 64), (8, 128), (2, 256), (3, 80)])
def test_equals_its_twin(
    device: KernelDevice, pool_dtype: torch.dtype, heads: int, head_dim: int, is_normed: bool
) -> None:
    assert_equals_twin(device, head_dim, is_normed, num_kv_heads=heads, head_dim=head_dim, dtype=pool_dtype)


@ragged
@given(
    heads=st.integers(1, 3),
    half=st.integers(0, 20),
    rest=st.integers(0, 9),
    gap=st.integers(0, 7),
    is_normed=st.booleans(),
    pool_dtype=st.sampled_from(FLOATS),
)
def test_takes_any_shape(
    device: KernelDevice, heads: int, half: int, rest: int, gap: int, is_normed: bool, pool_dtype: torch.dtype
) -> None:
    head_dim = max(1, 2 * half + rest)
    shape = {"num_kv_heads": heads, "head_dim": head_dim, "dtype": pool_dtype}
    assert_equals_twin(device, 2 * half or None, is_normed, gap, **shape)


@pytest.mark.parametrize("pool_dtype", FLOATS)
def test_stores_what_a_step_would_have_stored(device: KernelDevice, pool_dtype: torch.dtype) -> None:
    """On CPU the same bits as the way of K and V: norm, then rope_kv_write."""
    heads, kv, head_dim = 6, 3, 24
    shape = {"num_layers": 3, "layers_per_unit": 2, "num_kv_heads": kv, "head_dim": head_dim, "dtype": pool_dtype}
    paged = make_paged_batch(MIXED, device=device.torch_name, **shape)  # type: ignore[arg-type]
    norm, table = torch.randn(head_dim, device=device.torch_name), cos_sin_table(head_dim, device.torch_name)
    product = torch.randn(paged.num_tokens, heads + 2 * kv, head_dim, device=device.torch_name)
    norm, product = (x.to(device.activation_dtype(pool_dtype)) for x in (norm, product))
    q, k, v = product.split((heads, kv, kv), dim=1)
    direct, projected = empty(paged.pool), empty(paged.pool)
    for layer in range(3):
        ops.rope_kv_write(q.clone(), ops.rms_norm(k, norm, 1e-6), v, table, paged.batch, direct, layer)
        ops.project_rope_write(k, v, norm, 1e-6, table, tokens_of(paged), projected, layer)
    tolerance = TOLERANCE[pool_dtype] if device.is_cuda else 0  # sums of squares are added up in another order
    torch.testing.assert_close(projected.data, direct.data, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_refuses_what_does_not_fit(device: KernelDevice) -> None:
    paged = make_paged_batch([Sequence(3, 9)], head_dim=32, device=device.torch_name)
    tokens, pool = tokens_of(paged), paged.pool
    k = torch.randn(3, 2, 32, device=device.torch_name)
    with pytest.raises(ValueError, match="do not fit"):
        ops.project_rope_write(k[:2], k[:2], None, 0, None, tokens, pool, 0)
    with pytest.raises(ValueError, match="v has shape"):
        ops.project_rope_write(k, k[:2], None, 0, None, tokens, pool, 0)
    with pytest.raises(ValueError, match="k_norm has shape"):
        ops.project_rope_write(k, k, torch.ones(31, device=device.torch_name), 0, None, tokens, pool, 0)
    with pytest.raises(ValueError, match="rotated"):
        ops.project_rope_write(k, k, None, 0, torch.zeros(99, 34, device=device.torch_name), tokens, pool, 0)
