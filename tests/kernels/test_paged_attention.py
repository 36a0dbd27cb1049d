from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.kernel_device import KernelDevice
from fakes.paged_batch import Sequence, make_paged_batch
from worker import ops
from worker.ops import reference

POOL_DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
ragged = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

DECODES = [Sequence(1, n) for n in (1, 2, 31, 32, 33, 100)]
CHUNKS = [Sequence(48, 48), Sequence(20, 75), Sequence(3, 3), Sequence(70, 120)]
MIXED = [Sequence(1, 70), Sequence(1, 1), Sequence(2, 40), Sequence(33, 33), Sequence(17, 90)]


def assert_equals_twin(
    sequences: list[Sequence],
    device: KernelDevice,
    num_heads: int,
    layer: int = 0,
    gap: int = 0,
    sliding_window: int = 0,
    **shape: object,
) -> None:
    paged = make_paged_batch(sequences, device=device.torch_name, **shape)  # type: ignore[arg-type]
    dtype = device.activation_dtype(paged.pool.data.dtype)
    head_dim = paged.pool.head_dim
    device.skip_if_too_slow(sum(s.num_queries * s.seq_len for s in sequences) * num_heads * head_dim)
    fused = torch.randn(paged.num_tokens, num_heads * head_dim + gap, device=device.torch_name).to(dtype)
    q = fused[:, : num_heads * head_dim].unflatten(1, (num_heads, head_dim))
    scale = head_dim**-0.5
    out = ops.paged_attention(q, paged.batch, paged.pool, layer, scale, sliding_window)
    expected = reference.paged_attention(q, paged.batch, paged.pool, layer, scale, sliding_window)
    assert out.is_contiguous()
    tolerance = TOLERANCE[device.attention_dtype(paged.pool.data.dtype)]
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("pool_dtype", POOL_DTYPES)
@pytest.mark.parametrize("sequences", [DECODES, CHUNKS, MIXED], ids=["decodes", "chunks", "mixed"])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [
        (8, 4, 32),
        (12, 12, 64),
        (14, 2, 64),
        (28, 4, 128),
        (24, 2, 64),
        (4, 1, 128),
        (8, 1, 96),
        (3, 3, 80),
        (2, 2, 256),
        (4, 2, 8),
        (6, 2, 16),
    ],
)
def test_equals_its_twin(
    device: KernelDevice,
    pool_dtype: torch.dtype,
    sequences: list[Sequence],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> None:
    assert_equals_twin(sequences, device, num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=pool_dtype)


@pytest.mark.parametrize(("layers_per_unit", "block_size"), [(1, 1), (4, 16), (4, 32), (3, 5)])
@pytest.mark.parametrize("layer", [0, 3, 6])
def test_reads_its_own_layer(device: KernelDevice, layers_per_unit: int, block_size: int, layer: int) -> None:
    assert_equals_twin(
        MIXED, device, 4, layer=layer, num_layers=7, layers_per_unit=layers_per_unit, block_size=block_size
    )


@pytest.mark.parametrize("num_heads", [2, 16])
@pytest.mark.parametrize("sliding_window", [1, 7, 16, 50, 1000])
def test_sees_no_further_than_its_window(device: KernelDevice, num_heads: int, sliding_window: int) -> None:
    assert_equals_twin([*MIXED, Sequence(100, 260)], device, num_heads, sliding_window=sliding_window)


@pytest.mark.parametrize("sliding_window", [0, 900])
@pytest.mark.parametrize(("num_heads", "num_queries"), [(1, 1), (8, 1), (1, 3)])
def test_splits_the_keys_of_a_long_sequence(
    device: KernelDevice, num_heads: int, num_queries: int, sliding_window: int
) -> None:
    assert_equals_twin(
        [Sequence(num_queries, 3000)], device, num_heads, sliding_window=sliding_window, num_kv_heads=1, head_dim=64
    )


@pytest.mark.parametrize("pool_dtype", POOL_DTYPES)
@pytest.mark.parametrize("sequences", [MIXED, [Sequence(1, 3000), Sequence(40, 60)]], ids=["mixed", "long"])
def test_ignores_padding(device: KernelDevice, pool_dtype: torch.dtype, sequences: list[Sequence]) -> None:
    """As recorded steps have it: sequences of no tokens, tokens of no sequence, and lengths that none of them has."""
    paged = make_paged_batch(sequences, device=device.torch_name, dtype=pool_dtype)
    num_tokens, batch = paged.num_tokens, paged.batch
    q = torch.randn(num_tokens + 9, 4, 32, device=device.torch_name).to(device.activation_dtype(pool_dtype))
    device.skip_if_too_slow(sum(s.num_queries * s.seq_len for s in sequences) * 4 * 32)
    expected = reference.paged_attention(q[:num_tokens], batch, paged.pool, 0, 0.2)
    padded = replace(
        batch,
        positions=F.pad(batch.positions, (0, 9)),
        token_row=F.pad(batch.token_row, (0, 9)),
        token_ids=F.pad(batch.token_ids, (0, 9)),
        query_start=F.pad(batch.query_start, (0, 5), value=num_tokens),
        seq_lens=F.pad(batch.seq_lens, (0, 5), value=1),
        rows=F.pad(batch.rows, (0, 5)),
        max_query_len=num_tokens + 9,
        max_seq_len=paged.pool.block_table.shape[-1] * paged.pool.block_size,
    )
    out = ops.paged_attention(q, padded, paged.pool, 0, 0.2)
    tolerance = TOLERANCE[device.attention_dtype(pool_dtype)]
    torch.testing.assert_close(out[:num_tokens], expected, rtol=tolerance, atol=tolerance)


@ragged
@given(
    sequences=st.lists(
        st.builds(lambda n, past: Sequence(n, n + past), st.sampled_from([1, 1, 1, 2, 5, 30]), st.integers(0, 70)),
        min_size=1,
        max_size=6,
    ),
    num_kv_heads=st.integers(1, 3),
    group=st.integers(1, 9),
    head_dim=st.integers(1, 70),
    block_size=st.sampled_from([1, 2, 16, 32]),
    gap=st.integers(0, 7),
    sliding_window=st.sampled_from([0, 0, 1, 13]),
    pool_dtype=st.sampled_from(POOL_DTYPES),
    seed=st.integers(0, 1000),
)
def test_takes_any_shape(
    device: KernelDevice,
    sequences: list[Sequence],
    num_kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    gap: int,
    sliding_window: int,
    pool_dtype: torch.dtype,
    seed: int,
) -> None:
    if device.is_cuda:
        head_dim, gap = (head_dim + 7) // 8 * 8, gap * 8
    assert_equals_twin(
        sequences,
        device,
        group * num_kv_heads,
        gap=gap,
        sliding_window=sliding_window,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=pool_dtype,
        seed=seed,
    )


def test_survives_scores_of_any_size(device: KernelDevice) -> None:
    paged = make_paged_batch([Sequence(1, 40), Sequence(20, 60)], device=device.torch_name)
    q = 1e4 * torch.randn(21, 4, 32, device=device.torch_name)
    out = ops.paged_attention(q, paged.batch, paged.pool, 0, 1.0)
    expected = reference.paged_attention(q, paged.batch, paged.pool, 0, 1.0)
    torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)  # the scores round to steps of 2^-6


def test_result_does_not_depend_on_the_company(device: KernelDevice) -> None:
    sequences = [Sequence(1, 70), Sequence(5, 45), Sequence(60, 60)]
    together = make_paged_batch(sequences, device=device.torch_name)
    q = torch.randn(together.num_tokens, 4, 32, device=device.torch_name)
    out = ops.paged_attention(q, together.batch, together.pool, 0, 0.2)
    start = together.batch.query_start.tolist()
    for i, sequence in enumerate(sequences):
        alone = make_paged_batch([sequence], device=device.torch_name).batch
        alone = type(alone)(
            token_ids=alone.token_ids,
            positions=alone.positions,
            token_row=together.batch.token_row[start[i] : start[i + 1]],
            query_start=alone.query_start,
            seq_lens=alone.seq_lens,
            rows=together.batch.rows[i : i + 1],
            sample_tokens=alone.sample_tokens,
            max_query_len=sequence.num_queries,
            max_seq_len=sequence.seq_len,
        )
        single = ops.paged_attention(q[start[i] : start[i + 1]], alone, together.pool, 0, 0.2)
        torch.testing.assert_close(single, out[start[i] : start[i + 1]], rtol=1e-6, atol=1e-6)


def test_refuses_what_does_not_fit(device: KernelDevice) -> None:
    paged = make_paged_batch([Sequence(3, 9)], head_dim=32, device=device.torch_name)
    with pytest.raises(ValueError, match="do not fit"):
        ops.paged_attention(torch.randn(4, 2, 32, device=device.torch_name), paged.batch, paged.pool, 0, 1.0)
    with pytest.raises(ValueError, match="3 heads over 2"):
        ops.paged_attention(torch.randn(3, 3, 32, device=device.torch_name), paged.batch, paged.pool, 0, 1.0)
    with pytest.raises(ValueError, match="strides"):
        ops.paged_attention(torch.randn(3, 32, 2, device=device.torch_name).mT, paged.batch, paged.pool, 0, 1.0)
