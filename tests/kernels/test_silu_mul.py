from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.kernel_device import KernelDevice
from worker import ops
from worker.ops import reference

ragged = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def assert_equals_twin(gate_up: torch.Tensor) -> None:
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}[gate_up.dtype]
    torch.testing.assert_close(ops.silu_mul(gate_up), reference.silu_mul(gate_up), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("tokens", "intermediate"), [(1, 2048), (3, 4864), (64, 1024), (257, 11008)])
def test_equals_its_twin(device: KernelDevice, tokens: int, intermediate: int) -> None:
    device.skip_if_too_slow(tokens * intermediate * 30)
    for dtype in device.activation_dtypes:
        assert_equals_twin(3 * torch.randn(tokens, 2 * intermediate, dtype=dtype, device=device.torch_name))


@ragged
@given(tokens=st.integers(0, 9), intermediate=st.integers(1, 100))
def test_takes_any_size(device: KernelDevice, tokens: int, intermediate: int) -> None:
    assert_equals_twin(torch.randn(tokens, 2 * intermediate, device=device.torch_name))


def test_saturates_without_overflow(device: KernelDevice) -> None:
    gate = torch.tensor([-1e30, -200.0, -88.5, -87.0, -20.0, 0.0, 20.0, 87.5, 200.0, 1e30], device=device.torch_name)
    gate_up = torch.cat((gate, torch.ones_like(gate)))[None]
    assert_equals_twin(gate_up)


def test_refuses_strided_input(device: KernelDevice) -> None:
    with pytest.raises(ValueError, match="strides"):
        ops.silu_mul(torch.randn(4, 64, device=device.torch_name)[:, :32])
