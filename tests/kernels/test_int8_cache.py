"""K and V in int8: what is stored is the twin's to the last bit, attention over it is the twin's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.paged_batch import PagedBatch, Sequence, make_paged_batch
from worker import ops
from worker.batch.int8_cache import integers_and_scales, quantize_heads, vector_size
from worker.batch.paged_pool import PagedPool, StoredTokens
from worker.ops import reference

pytestmark = pytest.mark.usefixtures("cpu_device")  # CUDA has no such cache

SHAPES = [(8, 4, 32), (12, 12, 64), (14, 2, 64), (4, 1, 128), (3, 3, 80), (4, 2, 8), (6, 2, 18), (1, 1, 10)]
MIXED = [Sequence(1, 70), Sequence(1, 1), Sequence(2, 40), Sequence(33, 33), Sequence(17, 290), Sequence(1, 600)]
ragged = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def batch_of(sequences: list[Sequence], num_kv_heads: int, head_dim: int, **shape: int) -> PagedBatch:
    return make_paged_batch(sequences, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=torch.int8, **shape)


def assert_attention_equals_twin(paged: PagedBatch, num_heads: int, layer: int = 0, sliding_window: int = 0) -> None:
    head_dim = paged.pool.head_dim
    q = torch.randn(paged.num_tokens, num_heads, head_dim)
    out = ops.paged_attention(q, paged.batch, paged.pool, layer, head_dim**-0.5, sliding_window)
    expected = reference.paged_attention(q, paged.batch, paged.pool, layer, head_dim**-0.5, sliding_window)
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), SHAPES)
def test_attention_equals_its_twin(num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    assert_attention_equals_twin(batch_of(MIXED, num_kv_heads, head_dim), num_heads)


@ragged
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 300)), min_size=1, max_size=4),
    block_size=st.sampled_from([1, 2, 7, 16, 64]),
    layers_per_unit=st.integers(1, 3),
    sliding_window=st.sampled_from([0, 0, 1, 30]),
    shape=st.sampled_from(SHAPES),
)
def test_attention_takes_any_batch(
    lengths: list[tuple[int, int]],
    block_size: int,
    layers_per_unit: int,
    sliding_window: int,
    shape: tuple[int, int, int],
) -> None:
    sequences = [Sequence(queries, queries + past) for queries, past in lengths]
    num_heads, num_kv_heads, head_dim = shape
    paged = batch_of(
        sequences, num_kv_heads, head_dim, num_layers=3, layers_per_unit=layers_per_unit, block_size=block_size
    )
    assert_attention_equals_twin(paged, num_heads, 2, sliding_window)


@ragged
@given(
    shape=st.sampled_from(SHAPES),
    seed=st.integers(0, 2**16),
    magnitude=st.sampled_from([1e-38, 1e-30, 1e-6, 1.0, 1e4, 1e36]),
    spoiled=st.sampled_from([None, float("nan"), float("inf")]),
)
def test_what_is_stored_is_the_twins_to_the_last_bit(
    shape: tuple[int, int, int], seed: int, magnitude: float, spoiled: float | None
) -> None:
    num_heads, num_kv_heads, head_dim = shape
    paged = batch_of(MIXED, num_kv_heads, head_dim, seed=seed % 3)
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, paged.num_tokens, num_kv_heads, head_dim, generator=generator) * magnitude
    if spoiled is not None:
        k[3, 0, 1] = v[5, -1, 0] = spoiled
    v[4] = 0
    twin = PagedPool(paged.pool.data.clone(), paged.pool.block_table, num_kv_heads, head_dim)
    q = torch.randn(paged.num_tokens, num_heads, head_dim)
    ops.rope_kv_write(q.clone(), k, v, None, paged.batch, paged.pool, 0)
    reference.rope_kv_write(q.clone(), k, v, None, paged.batch, twin, 0)
    assert torch.equal(paged.pool.data, twin.data)


@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), SHAPES)
def test_rotated_keys_are_the_twins_but_for_the_last_bit_of_a_rotation(
    num_heads: int, num_kv_heads: int, head_dim: int, is_normed: bool
) -> None:
    paged = batch_of(MIXED, num_kv_heads, head_dim)
    q, k, v = (torch.randn(paged.num_tokens, n, head_dim) for n in (num_heads, num_kv_heads, num_kv_heads))
    twin = PagedPool(paged.pool.data.clone(), paged.pool.block_table, num_kv_heads, head_dim)
    cos_sin = torch.randn(1000, head_dim)
    norms = ops.HeadNorms(torch.randn(head_dim), torch.randn(head_dim), 1e-6) if is_normed else None
    rotated, expected = q.clone(), q.clone()
    ops.rope_kv_write(rotated, k, v, cos_sin, paged.batch, paged.pool, 0, norms)
    reference.rope_kv_write(expected, k, v, cos_sin, paged.batch, twin, 0, norms)
    tolerance = 2e-6 if is_normed else 1e-6  # what is rounded twice differs twice
    torch.testing.assert_close(rotated, expected, rtol=tolerance, atol=tolerance)
    integers, scales = integers_and_scales(paged.pool.data, num_kv_heads)
    wanted, of_twin = integers_and_scales(twin.data, num_kv_heads)
    assert (integers.int() - wanted.int()).abs().max() <= 1
    assert (integers != wanted).float().mean() < 1e-3
    torch.testing.assert_close(scales, of_twin, rtol=2**-7, atol=0, equal_nan=True)


def test_a_head_is_within_half_a_step_of_what_was_stored() -> None:
    heads = torch.randn(1000, 64) * torch.logspace(-20, 20, 1000)[:, None]
    integers, scales = quantize_heads(heads)
    steps = scales.float()[:, None]
    assert ((integers * steps - heads).abs() <= 0.5001 * steps).all()
    assert integers.abs().amax(1).min() >= 126  # no more range than a scale of bfloat16 costs


def test_attention_does_not_depend_on_company() -> None:
    """Alone, with others, as a decode and as the last of a chunk: the same bits."""
    paged = batch_of(MIXED, 2, 64)
    q = torch.randn(paged.num_tokens, 8, 64)
    together = ops.paged_attention(q, paged.batch, paged.pool, 0, 0.125)
    starts = paged.batch.query_start.tolist()
    for s in range(len(MIXED)):
        last = slice(starts[s + 1] - 1, starts[s + 1])
        alone = one_decode(paged, s)
        out = ops.paged_attention(q[last], alone.batch, alone.pool, 0, 0.125)
        assert torch.equal(out, together[last]), s


def one_decode(paged: PagedBatch, s: int) -> PagedBatch:
    """The last token of sequence s, alone in a step."""
    step = make_paged_batch([Sequence(1, MIXED[s].seq_len)]).batch
    step.rows.copy_(paged.batch.rows[s : s + 1])
    step.token_row.copy_(paged.batch.rows[s : s + 1])
    return PagedBatch(step, paged.pool)


def test_a_token_takes_little_more_than_half_of_bfloat16() -> None:
    for head_dim in (64, 96, 128, 256):
        assert 2 * 8 * head_dim / vector_size(8, head_dim, torch.int8) >= 1.9


def test_hidden_states_are_refused() -> None:
    paged = batch_of([Sequence(3, 3)], 2, 32)
    tokens = StoredTokens(paged.batch.token_row, paged.batch.positions)
    with pytest.raises(ValueError, match="in int8 only K and V"):
        ops.hidden_write(torch.randn(3, 16), tokens, paged.pool, 0)
