"""Rows in int8 beside others: stored as the twin stores them, and given what a pool of their own sort would give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.hidden_pool import make_hidden_pool, some_tokens
from fakes.kernel_device import FLOATS, KernelDevice
from fakes.paged_batch import PagedBatch, Sequence, alone, make_paged_batch
from worker import ops
from worker.batch.int8_cache import vector_size
from worker.batch.paged_pool import PagedPool, StepBatch, StoredTokens
from worker.ops import reference
from worker.ops.checks import check_pool

SHAPES = [(8, 4, 32), (14, 2, 64), (4, 1, 128), (3, 3, 80), (26, 2, 16), (6, 2, 18)]
MIXED = [
    Sequence(1, 70), Sequence(1, 1), Sequence(2, 40), Sequence(33, 33), Sequence(17, 290), Sequence(1, 600),
    Sequence(20, 300), Sequence(1, 1100), Sequence(1, 64), Sequence(5, 5),
]  # fmt: skip
IN_INT8 = [1, 2, 4, 7, 8]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2}
ragged = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def tokens_of(batch: StepBatch) -> Iterator[tuple[int, slice]]:
    starts = batch.query_start.tolist()
    return ((s, slice(starts[s], starts[s + 1])) for s in range(len(batch.rows)))


def copy_of(pool: PagedPool) -> PagedPool:
    return replace(pool, data=pool.data.clone())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sliding_window", [0, 200])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), SHAPES)
def test_attention_is_that_of_a_pool_of_the_rows_own_sort(
    cpu_device: KernelDevice, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, sliding_window: int
) -> None:
    def attend(paged: PagedBatch) -> torch.Tensor:
        return ops.paged_attention(q, paged.batch, paged.pool, 2, head_dim**-0.5, sliding_window)

    shape = {"num_layers": 3, "layers_per_unit": 2, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    mixed = make_paged_batch(MIXED, dtype=dtype, in_int8=IN_INT8, **shape)  # type: ignore[arg-type]
    q = torch.randn(mixed.num_tokens, num_heads, head_dim)
    out = attend(mixed)
    ordinary, int8 = (attend(make_paged_batch(MIXED, dtype=d, **shape)) for d in (dtype, torch.int8))  # type: ignore[arg-type]
    for s, tokens in tokens_of(mixed.batch):
        assert torch.equal(out[tokens], (int8 if s in IN_INT8 else ordinary)[tokens]), s
        one, _ = alone(mixed.batch, s)
        by_itself = ops.paged_attention(q[tokens], one, mixed.pool, 2, head_dim**-0.5, sliding_window)
        assert torch.equal(out[tokens], by_itself), s


@pytest.mark.parametrize("dtype", FLOATS)
def test_keys_of_a_long_sequence_may_be_split(cpu_device: KernelDevice, dtype: torch.dtype) -> None:
    """As there are fewer items than threads."""
    for sequence in (Sequence(1, 3000), Sequence(3, 3000)):
        row, int8 = (
            make_paged_batch([sequence], num_kv_heads=1, head_dim=64, dtype=d, in_int8=rows)
            for d, rows in ((dtype, [0]), (torch.int8, None))
        )
        q = torch.randn(sequence.num_queries, 2, 64)
        out, expected = (ops.paged_attention(q, p.batch, p.pool, 0, 0.125) for p in (row, int8))
        assert torch.equal(out, expected)


@ragged
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 300), st.booleans()), min_size=1, max_size=5),
    block_size=st.sampled_from([2, 8, 16, 64]),
    layers_per_unit=st.integers(1, 3),
    sliding_window=st.sampled_from([0, 0, 1, 30]),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(FLOATS),
)
def test_attention_is_the_twins(
    cpu_device: KernelDevice,
    lengths: list[tuple[int, int, bool]],
    block_size: int,
    layers_per_unit: int,
    sliding_window: int,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
) -> None:
    num_heads, num_kv_heads, head_dim = shape
    paged = make_paged_batch(
        [Sequence(queries, queries + past) for queries, past, _ in lengths],
        num_layers=3, layers_per_unit=layers_per_unit, block_size=block_size, num_kv_heads=num_kv_heads,
        head_dim=head_dim, dtype=dtype, in_int8=[i for i, (_, _, is_int8) in enumerate(lengths) if is_int8],
    )  # fmt: skip
    q = torch.randn(paged.num_tokens, num_heads, head_dim)
    out, expected = (
        module.paged_attention(q, paged.batch, paged.pool, 2, head_dim**-0.5, sliding_window)
        for module in (ops, reference)
    )
    tolerance = TOLERANCE[cpu_device.attention_dtype(dtype)]
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("cpu_device")
@ragged
@given(
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(FLOATS),
    layers_per_unit=st.integers(1, 3),
    layer=st.integers(0, 2),
    seed=st.integers(0, 2**16),
    magnitude=st.sampled_from([1e-38, 1e-30, 1e-6, 1.0, 1e4]),
    spoiled=st.sampled_from([None, float("nan"), float("inf")]),
)
def test_what_is_stored_is_the_twins_to_the_last_bit(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    layers_per_unit: int,
    layer: int,
    seed: int,
    magnitude: float,
    spoiled: float | None,
) -> None:
    num_heads, num_kv_heads, head_dim = shape
    paged = make_paged_batch(
        MIXED, num_layers=3, layers_per_unit=layers_per_unit, num_kv_heads=num_kv_heads, head_dim=head_dim,
        dtype=dtype, seed=seed % 3, in_int8=IN_INT8,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, paged.num_tokens, num_kv_heads, head_dim, generator=generator) * magnitude
    in_int8 = next(tokens for s, tokens in tokens_of(paged.batch) if s == 4)
    if spoiled is not None:
        k[in_int8][3, 0, 1] = v[in_int8][5, -1, 0] = spoiled
    v[in_int8][4] = 0
    twin = copy_of(paged.pool)
    q = torch.randn(paged.num_tokens, num_heads, head_dim)
    ops.rope_kv_write(q.clone(), k, v, None, paged.batch, paged.pool, layer)
    reference.rope_kv_write(q.clone(), k, v, None, paged.batch, twin, layer)
    assert same_bits(paged.pool.data, twin.data)


@pytest.mark.usefixtures("cpu_device")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), SHAPES)
def test_rotated_keys_are_those_of_a_pool_of_the_rows_own_sort(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, is_normed: bool
) -> None:
    shape = {"num_kv_heads": num_kv_heads, "head_dim": head_dim}
    mixed = make_paged_batch(MIXED, dtype=dtype, in_int8=IN_INT8, **shape)  # type: ignore[arg-type]
    others = [make_paged_batch(MIXED, dtype=d, **shape) for d in (dtype, torch.int8)]  # type: ignore[arg-type]
    q, k, v = (torch.randn(mixed.num_tokens, n, head_dim) for n in (num_heads, num_kv_heads, num_kv_heads))
    cos_sin = torch.randn(1200, head_dim)
    norms = ops.HeadNorms(torch.randn(head_dim), torch.randn(head_dim), 1e-6) if is_normed else None
    rotated = [q.clone() for _ in range(3)]
    for paged, of_paged in zip((mixed, *others), rotated, strict=True):
        ops.rope_kv_write(of_paged, k, v, cos_sin, paged.batch, paged.pool, 0, norms)
    assert torch.equal(rotated[0], rotated[1])
    for s, row in enumerate(mixed.batch.rows.tolist()):
        for kind in (reference.K, reference.V):
            stored, expected = (
                reference._gather(pool, row, 0, kind, MIXED[s].seq_len)
                for pool in (mixed.pool, others[s in IN_INT8].pool)
            )
            assert torch.equal(stored, expected), s


@pytest.mark.usefixtures("cpu_device")
@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_may_change_their_sort_between_calls(dtype: torch.dtype) -> None:
    """The kernels look at each call, also where what they are called with was made before."""
    paged = make_paged_batch([Sequence(3, 3)], dtype=dtype, in_int8=[])
    assert paged.pool.int8_rows is not None
    q, k = torch.randn(3, 4, 32), torch.randn(3, 2, 32)
    for is_int8 in (0, 1, 255, 0):
        paged.pool.int8_rows.fill_(is_int8)
        twin = copy_of(paged.pool)
        ops.rope_kv_write(q.clone(), k, k, None, paged.batch, paged.pool, 0)
        reference.rope_kv_write(q.clone(), k, k, None, paged.batch, twin, 0)
        assert same_bits(paged.pool.data, twin.data)
        out, expected = (m.paged_attention(q, paged.batch, paged.pool, 0, 0.2) for m in (ops, reference))
        torch.testing.assert_close(out, expected, rtol=1.6e-2, atol=1.6e-2)


@pytest.mark.usefixtures("cpu_device")
@pytest.mark.parametrize("dtype", FLOATS)
def test_hidden_states_are_dense_in_such_a_pool_too(dtype: torch.dtype) -> None:
    shape = {"num_layers": 3, "layers_per_unit": 2, "dtype": dtype}
    plain = make_hidden_pool(3, 4, **shape)  # type: ignore[arg-type]
    size = vector_size(plain.num_kv_heads, plain.head_dim, dtype, has_int8_rows=True)
    pool = replace(plain, data=torch.full((*plain.data.shape[:3], size), float("nan"), dtype=dtype))
    tokens, twin = some_tokens(3, 60, 40), copy_of(pool)
    x = torch.randn(40, 64)
    ops.hidden_write(x, tokens, pool, 2)
    reference.hidden_write(x, tokens, twin, 2)
    assert same_bits(pool.data, twin.data)
    assert torch.equal(ops.hidden_gather(tokens, pool, 2, 64), x.to(dtype).float())
    assert torch.equal(reference.hidden_gather(tokens, pool, 2, 64), x.to(dtype).float())
    with pytest.raises(ValueError, match="does not fit"):
        ops.hidden_write(torch.randn(40, 65), tokens, pool, 2)


@pytest.mark.usefixtures("cpu_device")
@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_projected_from_them_is_dense_too(dtype: torch.dtype) -> None:
    paged = make_paged_batch(MIXED, num_layers=3, layers_per_unit=2, dtype=dtype, in_int8=[])
    tokens, twin = StoredTokens(paged.batch.token_row, paged.batch.positions), copy_of(paged.pool)
    k, v = torch.randn(2, paged.num_tokens, 2, 32)
    for module, pool in ((ops, paged.pool), (reference, twin)):
        module.project_rope_write(k, v, None, 0.0, None, tokens, pool, 2)
    assert same_bits(paged.pool.data, twin.data)


def test_a_block_in_int8_takes_half_the_units() -> None:
    """Its halves are as long as a layer of an int8 pool, or longer."""
    for dtype in FLOATS:
        for num_kv_heads, head_dim in ((8, 128), (2, 64), (3, 2)):
            size = vector_size(num_kv_heads, head_dim, dtype, has_int8_rows=True)
            assert size * dtype.itemsize >= 2 * vector_size(num_kv_heads, head_dim, torch.int8)
    assert vector_size(8, 128, torch.float32, has_int8_rows=True) == 8 * 128
    assert vector_size(8, 128, torch.bfloat16, has_int8_rows=True) == 8 * 130
    assert vector_size(8, 128, torch.bfloat16) == 8 * 128


def a_pool(
    dtype: torch.dtype, *, head_dim: int = 8, block_size: int = 4, has_room: bool = True, device: str = "cpu"
) -> PagedPool:
    size = vector_size(1, head_dim, dtype, has_int8_rows=has_room)
    table = torch.zeros(3, 1, 2, 5, dtype=torch.int32, device=device)
    rows = torch.zeros(3, dtype=torch.uint8)
    return PagedPool(
        torch.zeros(6, 1, block_size, size, dtype=dtype, device=device), table, 1, head_dim, int8_rows=rows
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_refuses_what_does_not_fit(dtype: torch.dtype) -> None:
    check_pool(a_pool(dtype))
    check_pool(replace(a_pool(dtype), int8_rows=None))  # has room, and no use of it
    for wrong in (torch.zeros(2, dtype=torch.uint8), torch.zeros(6, dtype=torch.uint8)[::2]):
        with pytest.raises(ValueError, match="int8_rows has"):
            check_pool(replace(a_pool(dtype), int8_rows=wrong))
    for told in (torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.uint8, device="meta")):
        with pytest.raises(ValueError, match="bytes on the CPU"):
            check_pool(replace(a_pool(dtype), int8_rows=told))
    with pytest.raises(ValueError, match="bytes on the CPU"):
        check_pool(a_pool(dtype, device="meta"))
    with pytest.raises(ValueError, match="bytes on the CPU"):
        check_pool(a_pool(torch.int8))
    with pytest.raises(ValueError, match="even number"):
        check_pool(a_pool(dtype, head_dim=9, block_size=3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_refuses_vectors_of_another_size(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="vectors of num_kv_heads"):
        check_pool(a_pool(dtype, has_room=False))
    with pytest.raises(ValueError, match="vectors of num_kv_heads"):
        check_pool(replace(a_pool(dtype, device="meta"), int8_rows=None))


def test_refuses_heads_of_one_element_in_float32() -> None:
    with pytest.raises(ValueError, match="do not fit a half"):
        check_pool(a_pool(torch.float32, head_dim=1))
