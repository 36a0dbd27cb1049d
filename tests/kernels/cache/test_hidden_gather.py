from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.hidden_pool import make_hidden_pool, some_tokens
from fakes.kernel_device import FLOATS, KernelDevice
from worker import ops
from worker.ops import reference

ragged = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("pool_dtype", FLOATS)
@pytest.mark.parametrize(("hidden", "heads", "head_dim"), [(64, 2, 32), (768, 12, 64), (1024, 8, 128), (896, 14, 64)])
def test_equals_its_twin(device: KernelDevice, pool_dtype: torch.dtype, hidden: int, heads: int, head_dim: int) -> None:
    pool = make_hidden_pool(3, 4, num_kv_heads=heads, head_dim=head_dim, dtype=pool_dtype, device=device.torch_name)
    pool.data.normal_()
    tokens = some_tokens(3, 64, 40, device=device.torch_name)
    x = ops.hidden_gather(tokens, pool, 0, hidden)
    assert x.dtype is device.activation_dtype(pool_dtype)
    assert x.is_contiguous()
    assert torch.equal(x, reference.hidden_gather(tokens, pool, 0, hidden).to(x.dtype))


@ragged
@given(
    hidden=st.integers(1, 70),
    room=st.integers(0, 9),
    count=st.integers(0, 9),
    layer=st.integers(0, 4),
    layers_per_unit=st.integers(1, 3),
    block_size=st.sampled_from([1, 4, 5]),
    seed=st.integers(0, 1000),
)
def test_brings_back_what_was_stored(
    device: KernelDevice,
    hidden: int,
    room: int,
    count: int,
    layer: int,
    layers_per_unit: int,
    block_size: int,
    seed: int,
) -> None:
    pool = make_hidden_pool(
        3,
        2,
        num_layers=5,
        layers_per_unit=layers_per_unit,
        block_size=block_size,
        num_kv_heads=1,
        head_dim=hidden + room,
        device=device.torch_name,
        seed=seed,
    )
    tokens = some_tokens(3, 2 * block_size, count, device=device.torch_name, seed=seed)
    x = torch.randn(len(tokens.positions), hidden, device=device.torch_name)
    ops.hidden_write(x, tokens, pool, layer)
    assert torch.equal(ops.hidden_gather(tokens, pool, layer, hidden), x)


def test_refuses_what_does_not_fit(device: KernelDevice) -> None:
    pool = make_hidden_pool(2, 2, device=device.torch_name)
    with pytest.raises(ValueError, match="a vector of 65 does not fit"):
        ops.hidden_gather(some_tokens(2, 20, 3, device=device.torch_name), pool, 0, 65)
