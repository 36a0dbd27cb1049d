from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.kernel_device import FLOATS, KernelDevice
from worker import ops
from worker.ops import native

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
ragged = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def index(values: torch.Tensor, device: KernelDevice) -> torch.Tensor:
    return values.to(torch.int32).to(device.torch_name)


@ragged
@given(
    count=st.integers(0, 9),
    unit=st.integers(1, 600),
    has_to=st.booleans(),
    has_from=st.booleans(),
    dtype=st.sampled_from(FLOATS),
)
def test_copies_each_unit_to_its_place_and_nothing_else(
    device: KernelDevice, count: int, unit: int, has_to: bool, has_from: bool, dtype: torch.dtype
) -> None:
    shape = (unit, 8 if device.is_cuda else 1)
    source = torch.randn(12, *shape).to(dtype).to(device.torch_name)
    to = torch.randn(12 if has_to else count, *shape).to(dtype).to(device.torch_name)
    from_units, to_units = torch.randperm(12)[:count], torch.randperm(12)[:count]
    expected = to.clone()
    expected[to_units if has_to else slice(count)] = source[from_units if has_from else slice(count)]
    ops.unit_copy(
        to, source, index(to_units, device) if has_to else None, index(from_units, device) if has_from else None
    )
    assert torch.equal(to, expected)


def test_copies_units_as_large_as_a_pool_has_them(device: KernelDevice) -> None:
    device.skip_if_too_slow(3_000_000)
    pool, staged = torch.randn(9, 4, 16, 1024, device=device.torch_name), torch.empty(4, 4, 16, 1024)
    units = torch.tensor([8, 0, 3, 5])
    staged = staged.to(device.torch_name)
    ops.unit_copy(staged, pool, None, index(units, device))
    assert torch.equal(staged, pool[units])


def test_refuses_what_does_not_fit(device: KernelDevice) -> None:
    a, b = torch.zeros(3, 8, device=device.torch_name), torch.zeros(3, 16, device=device.torch_name)
    with pytest.raises(ValueError, match="units of"):
        ops.unit_copy(a, b)
    with pytest.raises(ValueError, match="contiguous"):
        ops.unit_copy(a, b[:, :8])
    with pytest.raises(ValueError, match="int32"):
        ops.unit_copy(a, a.clone(), torch.arange(3, device=device.torch_name))


@ragged
@given(count=st.integers(0, 5), units_per_block=st.integers(1, 4), unit=st.integers(1, 300), has_kernels=st.booleans())
def test_saves_blocks_to_their_slots_and_nothing_else(
    count: int, units_per_block: int, unit: int, has_kernels: bool
) -> None:
    host, pool = torch.randn(6, units_per_block, unit), torch.randn(20, unit)
    slots = torch.randperm(6)[:count]
    units = torch.randperm(20)[: count * units_per_block]
    expected = host.clone()
    expected[slots] = pool[units].view(count, units_per_block, unit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "HAS_KERNELS", has_kernels)
        save = ops.make_block_saver(host, pool)
    save(slots.numpy().astype(np.int32), units.numpy().astype(np.int32))
    assert torch.equal(host, expected)


@pytest.mark.parametrize(
    ("slots", "units"), [([0, 2], [0, 1, 2, 3]), ([-1], [0, 1]), ([1], [0, 5]), ([1], [-1, 0]), ([1], [0]), ([], [1])]
)
def test_saves_nothing_where_a_slot_or_a_unit_is_not_there(slots: list[int], units: list[int]) -> None:
    host, pool = torch.zeros(2, 2, 8), torch.ones(5, 8)
    save = ops.make_block_saver(host, pool)
    with pytest.raises(IndexError):
        save(np.array(slots, np.int32), np.array(units, np.int32))
    assert not host.any()


def test_saves_only_units_of_one_size() -> None:
    with pytest.raises(ValueError, match="units of"):
        ops.make_block_saver(torch.zeros(2, 2, 8), torch.zeros(5, 9))
    with pytest.raises(ValueError, match="contiguous"):
        ops.make_block_saver(torch.zeros(2, 2, 8), torch.zeros(5, 16)[:, :8])


@pytest.mark.gpu
@needs_cuda
def test_copies_to_pinned_memory_of_the_host_and_back() -> None:
    pool = torch.randn(40, 4, 16, 64, device="cuda")
    host = torch.empty(7, 4, 16, 64, pin_memory=True)
    units = torch.randperm(40, device="cuda")[:7].to(torch.int32)
    before = pool.clone()
    ops.unit_copy(host, pool, None, units)
    torch.cuda.synchronize()
    assert torch.equal(host, before[units.long()].cpu())
    pool.zero_()
    ops.unit_copy(pool, host, units, None)
    torch.cuda.synchronize()
    assert torch.equal(pool[units.long()], before[units.long()])


@pytest.mark.gpu
@needs_cuda
def test_refuses_memory_of_the_host_that_is_not_pinned() -> None:
    with pytest.raises(ValueError, match="pinned"):
        ops.unit_copy(torch.empty(2, 8), torch.empty(2, 8, device="cuda"))
