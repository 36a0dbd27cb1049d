from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.kernel_device import KernelDevice
from fakes.paged_batch import Sequence, make_paged_batch
from worker import ops
from worker.batch.paged_pool import PagedPool
from worker.ops import reference

POOL_DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
MIXED = [Sequence(1, 37), Sequence(1, 1), Sequence(20, 20), Sequence(5, 64)]
ragged = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def cos_sin_table(rotary_dim: int, device: str) -> torch.Tensor:
    angles = torch.arange(256)[:, None] * 10000.0 ** (-torch.arange(rotary_dim // 2) / (rotary_dim // 2))
    return torch.cat((angles.cos(), angles.sin()), dim=1).to(device)


def empty_twin(pool: PagedPool) -> PagedPool:
    return PagedPool(torch.full_like(pool.data, float("nan")), pool.block_table, pool.num_kv_heads, pool.head_dim)


def assert_equals_twin(
    sequences: list[Sequence],
    device: KernelDevice,
    num_heads: int,
    rotary_dim: int | None,
    layer: int = 0,
    gap: int = 0,
    is_normed: bool = False,
    **shape: object,
) -> None:
    """On a fused projection with `gap` elements that belong to nobody at the end of each row."""
    paged = make_paged_batch(sequences, device=device.torch_name, **shape)  # type: ignore[arg-type]
    ours, twin, kv = empty_twin(paged.pool), empty_twin(paged.pool), paged.pool.num_kv_heads
    dtype = device.activation_dtype(paged.pool.data.dtype)
    head_dim = paged.pool.head_dim
    fused = torch.randn(paged.num_tokens, (num_heads + 2 * kv) * head_dim + gap, device=device.torch_name).to(dtype)
    fused_twin = fused.clone()
    cos_sin = None if rotary_dim is None else cos_sin_table(rotary_dim, device.torch_name)
    norms = None
    if is_normed:
        weights = torch.randn(2, head_dim, device=device.torch_name).to(dtype)
        norms = ops.HeadNorms(weights[0], weights[1], 1e-6)
    for module, pool, rows in ((ops, ours, fused), (reference, twin, fused_twin)):
        heads = rows[:, : (num_heads + 2 * kv) * head_dim].unflatten(1, (-1, head_dim))
        q, k, v = heads.split((num_heads, kv, kv), dim=1)
        module.rope_kv_write(q, k, v, cos_sin, paged.batch, pool, layer, norms)
    for actual, expected in ((fused, fused_twin), (ours.data, twin.data)):
        tolerance = (2 if is_normed else 1) * TOLERANCE[actual.dtype]  # what is rounded twice differs twice
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize("pool_dtype", POOL_DTYPES)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(8, 4, 32), (12, 12, 64), (14, 2, 64), (4, 1, 128), (2, 2, 256)]
)
def test_equals_its_twin(
    device: KernelDevice, pool_dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int, is_normed: bool
) -> None:
    shape = {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "dtype": pool_dtype}
    assert_equals_twin(MIXED, device, num_heads, head_dim, is_normed=is_normed, **shape)


@pytest.mark.parametrize("pool_dtype", POOL_DTYPES)
@pytest.mark.parametrize("rotary_dim", [None, 16, 24, 80])
@pytest.mark.parametrize("is_normed", [False, True])
def test_rotates_only_the_leading_dimensions(
    device: KernelDevice, pool_dtype: torch.dtype, rotary_dim: int | None, is_normed: bool
) -> None:
    assert_equals_twin(MIXED, device, 4, rotary_dim, is_normed=is_normed, head_dim=80, dtype=pool_dtype)


@pytest.mark.parametrize(("layers_per_unit", "block_size"), [(1, 1), (4, 16), (4, 32), (3, 5)])
@pytest.mark.parametrize("layer", [0, 3, 6])
def test_writes_one_layer_and_no_other(device: KernelDevice, layers_per_unit: int, block_size: int, layer: int) -> None:
    assert_equals_twin(
        MIXED, device, 4, 32, layer=layer, num_layers=7, layers_per_unit=layers_per_unit, block_size=block_size
    )


@ragged
@given(
    sequences=st.lists(
        st.builds(lambda n, past: Sequence(n, n + past), st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=5
    ),
    num_kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    half=st.integers(1, 20),
    rest=st.integers(0, 9),
    gap=st.integers(0, 7),
    is_normed=st.booleans(),
    pool_dtype=st.sampled_from(POOL_DTYPES),
)
def test_takes_any_shape(
    device: KernelDevice,
    sequences: list[Sequence],
    num_kv_heads: int,
    group: int,
    half: int,
    rest: int,
    gap: int,
    is_normed: bool,
    pool_dtype: torch.dtype,
) -> None:
    head_dim = 2 * half + rest
    if device.is_cuda:
        head_dim = (head_dim + 7) // 8 * 8
    assert_equals_twin(
        sequences,
        device,
        group * num_kv_heads,
        2 * half,
        gap=8 * gap if device.is_cuda else gap,
        is_normed=is_normed,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=pool_dtype,
    )


def test_equals_the_rotation_of_hugging_face(device: KernelDevice) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    paged = make_paged_batch([Sequence(20, 50)], head_dim=64, device=device.torch_name)
    table = cos_sin_table(64, device.torch_name)[paged.batch.positions.long()]
    cos, sin = (half.repeat(1, 2)[None] for half in table.chunk(2, dim=1))
    q, k = torch.randn(20, 4, 64, device=device.torch_name), torch.randn(20, 2, 64, device=device.torch_name)
    expected_q, expected_k = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos, sin)
    ops.rope_kv_write(q, k, torch.zeros_like(k), cos_sin_table(64, device.torch_name), paged.batch, paged.pool, 0)
    torch.testing.assert_close(q, expected_q[0].transpose(0, 1), rtol=1e-5, atol=1e-5)
    stored = reference._gather(paged.pool, int(paged.batch.rows[0]), 0, reference.K, 50)[30:]
    torch.testing.assert_close(stored, expected_k[0].transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_refuses_what_does_not_fit(device: KernelDevice) -> None:
    paged = make_paged_batch([Sequence(3, 9)], head_dim=32, device=device.torch_name)
    q, k = torch.randn(3, 4, 32, device=device.torch_name), torch.randn(3, 2, 32, device=device.torch_name)
    with pytest.raises(ValueError, match="v has shape"):
        ops.rope_kv_write(q, k, k[:2], None, paged.batch, paged.pool, 0)
    with pytest.raises(ValueError, match="do not fit"):
        ops.rope_kv_write(q[:2], k[:2], k[:2], None, paged.batch, paged.pool, 0)
    with pytest.raises(ValueError, match="rotated"):
        ops.rope_kv_write(q, k, k, torch.zeros(99, 34, device=device.torch_name), paged.batch, paged.pool, 0)
