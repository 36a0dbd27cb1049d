from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.hidden_pool import make_hidden_pool, some_tokens
from fakes.kernel_device import FLOATS, KernelDevice
from worker import ops
from worker.batch.paged_pool import PagedPool, StoredTokens
from worker.ops import reference

ragged = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def copy_of(pool: PagedPool) -> PagedPool:
    return replace(pool, data=pool.data.clone())


def assert_equals_twin(x: torch.Tensor, tokens: StoredTokens, pool: PagedPool, layer: int) -> None:
    """Nothing but the tokens' vectors is written: the rest stays NaN."""
    ours, twin = copy_of(pool), copy_of(pool)
    ops.hidden_write(x, tokens, ours, layer)
    reference.hidden_write(x, tokens, twin, layer)
    torch.testing.assert_close(ours.data, twin.data, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("pool_dtype", FLOATS)
@pytest.mark.parametrize(("hidden", "heads", "head_dim"), [(64, 2, 32), (768, 12, 64), (1024, 8, 128), (896, 14, 64)])
def test_equals_its_twin(device: KernelDevice, pool_dtype: torch.dtype, hidden: int, heads: int, head_dim: int) -> None:
    pool = make_hidden_pool(3, 4, num_kv_heads=heads, head_dim=head_dim, dtype=pool_dtype, device=device.torch_name)
    tokens = some_tokens(3, 64, 40, device=device.torch_name)
    x = torch.randn(40, hidden, device=device.torch_name).to(device.activation_dtype(pool_dtype))
    assert_equals_twin(x, tokens, pool, 0)


@pytest.mark.parametrize(("layers_per_unit", "block_size"), [(1, 1), (4, 16), (4, 32), (3, 5)])
@pytest.mark.parametrize("layer", [0, 3, 6])
def test_writes_its_own_layer(device: KernelDevice, layers_per_unit: int, block_size: int, layer: int) -> None:
    pool = make_hidden_pool(
        2, 3, num_layers=7, layers_per_unit=layers_per_unit, block_size=block_size, device=device.torch_name
    )
    tokens = some_tokens(2, 3 * block_size, 11, device=device.torch_name)
    assert_equals_twin(torch.randn(len(tokens.positions), 64, device=device.torch_name), tokens, pool, layer)


@ragged
@given(
    hidden=st.integers(1, 70),
    room=st.integers(0, 9),
    gap=st.integers(0, 7),
    count=st.integers(0, 9),
    pool_dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 1000),
)
def test_takes_any_rows_of_x_of_any_size(
    device: KernelDevice, hidden: int, room: int, gap: int, count: int, pool_dtype: torch.dtype, seed: int
) -> None:
    """x is a view with `gap` elements between its rows, in which most rows are not stored."""
    pool = make_hidden_pool(
        3, 2, block_size=4, num_kv_heads=1, head_dim=hidden + room, dtype=pool_dtype, device=device.torch_name
    )
    tokens = some_tokens(3, 8, count, device=device.torch_name, seed=seed)
    source = torch.randperm(20)[:count].to(torch.int32).to(device.torch_name)
    x = torch.randn(20, hidden + gap, device=device.torch_name).to(device.activation_dtype(pool_dtype))[:, :hidden]
    assert_equals_twin(x, replace(tokens, source=source), pool, 0)


def test_the_unit_of_group_g_is_at_place_g_of_the_row(device: KernelDevice) -> None:
    """A hidden block's units, group by group, where K and V of the first groups would be (block_tables.h)."""
    pool = make_hidden_pool(1, 1, num_layers=6, layers_per_unit=2, block_size=2, device=device.torch_name)
    pool.block_table.view(-1)[:3] = torch.tensor([4, 0, 2])
    token = StoredTokens(*(torch.tensor([i], dtype=torch.int32, device=device.torch_name) for i in (0, 1)))
    for layer in range(6):
        ops.hidden_write(torch.full((1, 64), float(layer), device=device.torch_name), token, pool, layer)
    assert pool.data[[4, 4, 0, 0, 2, 2], [0, 1, 0, 1, 0, 1], 1, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert int(pool.data.isnan().sum()) == pool.data.numel() - 6 * 64


def test_refuses_what_does_not_fit(device: KernelDevice) -> None:
    pool = make_hidden_pool(2, 2, device=device.torch_name)
    tokens = some_tokens(2, 20, 3, device=device.torch_name)
    with pytest.raises(ValueError, match="a vector of 65 does not fit"):
        ops.hidden_write(torch.randn(3, 65, device=device.torch_name), tokens, pool, 0)
    longs = replace(tokens, positions=tokens.positions.long())
    with pytest.raises(ValueError, match="int32"):
        ops.hidden_write(torch.randn(3, 64, device=device.torch_name), longs, pool, 0)
    with pytest.raises(ValueError, match="2 rows for 3 tokens"):
        ops.hidden_write(torch.randn(2, 64, device=device.torch_name), tokens, pool, 0)
