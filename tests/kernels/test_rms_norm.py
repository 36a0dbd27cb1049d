from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.kernel_device import KernelDevice
from worker import ops
from worker.ops import reference

ragged = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("tokens", "hidden"), [(1, 256), (7, 768), (64, 896), (300, 1024), (2, 8192)])
def test_equals_its_twin(device: KernelDevice, tokens: int, hidden: int) -> None:
    device.skip_if_too_slow(tokens * hidden * 30)
    for dtype in device.activation_dtypes:
        x = torch.randn(tokens, hidden, dtype=dtype, device=device.torch_name)
        weight = torch.randn(hidden, dtype=dtype, device=device.torch_name)
        assert_close(ops.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))


@ragged
@given(tokens=st.integers(0, 9), hidden=st.integers(1, 150), gap=st.integers(0, 5))
def test_takes_strided_rows_of_any_size(device: KernelDevice, tokens: int, hidden: int, gap: int) -> None:
    x = torch.randn(tokens, hidden + gap, device=device.torch_name)[:, :hidden]
    weight = torch.randn(hidden, device=device.torch_name)
    out = ops.rms_norm(x, weight, 1e-6)
    assert out.is_contiguous()
    assert_close(out, reference.rms_norm(x, weight, 1e-6))


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 64), (4, 128), (3, 80), (8, 8)])
def test_norms_the_heads_of_a_fused_projection(device: KernelDevice, heads: int, head_dim: int) -> None:
    for dtype in device.activation_dtypes:
        qkv = torch.randn(11, 3 * heads * head_dim, dtype=dtype, device=device.torch_name)
        k = qkv[:, heads * head_dim : 2 * heads * head_dim].view(11, heads, head_dim)
        weight = torch.randn(head_dim, dtype=dtype, device=device.torch_name)
        out = ops.rms_norm(k, weight, 1e-6)
        assert out.is_contiguous()
        assert_close(out, reference.rms_norm(k, weight, 1e-6))


@pytest.mark.parametrize(("tokens", "hidden"), [(1, 256), (5, 77), (130, 768)])
def test_add_updates_the_residual_in_place(device: KernelDevice, tokens: int, hidden: int) -> None:
    for dtype in device.activation_dtypes:
        x, residual = torch.randn(2, tokens, hidden, dtype=dtype, device=device.torch_name)
        weight = torch.randn(hidden, dtype=dtype, device=device.torch_name)
        expected_residual = residual.clone()
        expected = reference.add_rms_norm(x, expected_residual, weight, 1e-5)
        assert_close(ops.add_rms_norm(x, residual, weight, 1e-5), expected)
        assert_close(residual, expected_residual)


def test_add_leaves_x_alone(device: KernelDevice) -> None:
    x, residual = torch.randn(2, 3, 48, device=device.torch_name)
    before = x.clone()
    ops.add_rms_norm(x, residual, torch.ones(48, device=device.torch_name), 1e-5)
    assert torch.equal(x, before)


def test_refuses_what_does_not_fit(device: KernelDevice) -> None:
    x = torch.randn(4, 32, device=device.torch_name)
    with pytest.raises(ValueError, match="H is 32, not 31"):
        ops.rms_norm(x, torch.ones(31, device=device.torch_name), 1e-5)
    with pytest.raises(ValueError, match="strides"):
        ops.rms_norm(x.T, torch.ones(4, device=device.torch_name), 1e-5)
    with pytest.raises(ValueError, match="float64"):
        ops.rms_norm(x, torch.ones(32, device=device.torch_name, dtype=torch.float64), 1e-5)
