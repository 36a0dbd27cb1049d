from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.kernel_device import FLOATS
from fakes.paged_batch import Sequence, make_paged_batch
from worker import ops
from worker.batch.int8_cache import dense_vectors, vector_size
from worker.batch.paged_pool import PagedPool
from worker.ops import reference

pytestmark = pytest.mark.usefixtures("cpu_device")  # CUDA has no such rows

ragged = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def make_pool(
    num_units: int,
    *,
    num_groups: int = 2,
    layers_per_unit: int = 2,
    block_size: int = 16,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    dtype: torch.dtype = torch.float32,
) -> PagedPool:
    """NaN behind the vectors, and for some of the tokens."""
    size = vector_size(num_kv_heads, head_dim, dtype, has_int8_rows=True)
    data = torch.full((num_units, layers_per_unit, block_size, size), float("nan"), dtype=dtype)
    vectors = torch.randn(num_units, layers_per_unit, block_size, num_kv_heads * head_dim)
    vectors[::3, :, block_size // 2 :] = float("nan")
    vectors[1::3, :, block_size // 2, 0] = float("inf")
    dense_vectors(data, num_kv_heads * head_dim).copy_(vectors)
    table = torch.zeros(4, num_groups, 2, 3, dtype=torch.int32)
    return PagedPool(data, table, num_kv_heads, head_dim, int8_rows=torch.zeros(4, dtype=torch.uint8))


def assert_equals_twin(pool: PagedPool, from_units: torch.Tensor, to_units: torch.Tensor) -> None:
    twin = replace(pool, data=pool.data.clone())
    ops.int8_blocks(pool, from_units, to_units)
    reference.int8_blocks(twin, from_units, to_units)
    assert torch.equal(pool.data.view(torch.uint8), twin.data.view(torch.uint8))


@ragged
@given(
    count=st.integers(0, 7),
    num_groups=st.integers(1, 3),
    layers_per_unit=st.integers(1, 3),
    block_size=st.sampled_from([2, 4, 16, 32]),
    heads=st.sampled_from([(1, 10), (3, 2), (2, 18), (4, 32), (2, 64), (1, 80), (8, 128)]),
    dtype=st.sampled_from(FLOATS),
    is_aliased=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_equals_its_twin(
    count: int,
    num_groups: int,
    layers_per_unit: int,
    block_size: int,
    heads: tuple[int, int],
    dtype: torch.dtype,
    is_aliased: bool,
    seed: int,
) -> None:
    """Aliased: units are written that other blocks, or other halves, are read from."""
    torch.manual_seed(seed)
    num_read = count * num_groups * 2
    units = torch.randperm(num_read + num_read // 2 + 3).to(torch.int32)
    pool = make_pool(
        len(units), num_groups=num_groups, layers_per_unit=layers_per_unit, block_size=block_size,
        num_kv_heads=heads[0], head_dim=heads[1], dtype=dtype,
    )  # fmt: skip
    places = units[:num_read][torch.randperm(num_read)] if is_aliased else units[num_read:]
    to_units = places[: num_read // 2].view(count, num_groups)
    assert_equals_twin(pool, units[:num_read].view(count, num_groups, 2), to_units)


def test_two_blocks_may_take_each_others_units() -> None:
    for dtype in FLOATS:
        pool = make_pool(4, num_groups=1, dtype=dtype)
        from_units = torch.tensor([[[0, 1]], [[2, 3]]], dtype=torch.int32)
        assert_equals_twin(pool, from_units, torch.tensor([[3], [0]], dtype=torch.int32))


def test_a_row_goes_on_as_if_it_had_been_in_int8_from_the_start() -> None:
    """In float32, where nothing was rounded before."""
    sequences = [Sequence(1, 100), Sequence(1, 300)]
    paged = make_paged_batch(sequences, num_layers=5, layers_per_unit=2, num_kv_heads=2, head_dim=64, in_int8=[])
    expected = make_paged_batch(sequences, num_layers=5, layers_per_unit=2, num_kv_heads=2, head_dim=64, in_int8=[1])
    table, row, num_blocks = paged.pool.block_table, int(paged.batch.rows[1]), -(-300 // 16)
    from_units = table[row, :, :, :num_blocks].permute(2, 0, 1).contiguous()  # [blocks, groups, 2]
    to_units = from_units[:, :, 0].contiguous()
    ops.int8_blocks(paged.pool, from_units, to_units)
    table[row].flatten(0, 1)[:3, :num_blocks] = to_units.T
    assert paged.pool.int8_rows is not None
    paged.pool.int8_rows[row] = 1
    q = torch.randn(2, 8, 64)
    for layer in range(5):
        out, wanted = (ops.paged_attention(q, p.batch, p.pool, layer, 0.125) for p in (paged, expected))
        assert torch.equal(out, wanted)


def test_refuses_what_does_not_fit() -> None:
    pool, units = make_pool(9), torch.arange(8, dtype=torch.int32)
    from_units, to_units = units.view(2, 2, 2), units[:4].view(2, 2)
    with pytest.raises(ValueError, match="no rows in int8"):
        ops.int8_blocks(replace(pool, int8_rows=None), from_units, to_units)
    for wrong, of_them in (
        (from_units[:1], to_units),
        (from_units[:, :1], to_units),
        (from_units, to_units.T[:, :1]),
        (from_units.flatten(1), to_units),
        (from_units.mT, to_units),
    ):
        with pytest.raises(ValueError, match="expected from_units"):
            ops.int8_blocks(pool, wrong, of_them)
    for place in (to_units.long(), to_units.to("meta")):
        with pytest.raises(ValueError, match="int32 and on the CPU"):
            ops.int8_blocks(pool, from_units, place)
