from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.kernel_device import KernelDevice
from worker import ops
from worker.ops import products, reference

HALVES = [torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
ragged = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def assert_equals_twin(
    device: KernelDevice, dtype: torch.dtype, rows: int, k: int, n: int, *, gap: int = 0, **how: bool
) -> None:
    device.skip_if_too_slow(rows * k * n * (2 if how["is_gated"] else 1))
    x = torch.randn(rows, k + gap, device=device.torch_name).to(dtype)[:, :k]
    num_weights = 2 * n if how["is_gated"] else n
    weight = (torch.randn(num_weights, k, device=device.torch_name) / k**0.5).to(dtype)
    bias = torch.randn(num_weights, device=device.torch_name).to(dtype) if how["has_bias"] else None
    device.synchronize()  # weights are read early
    out = ops.gemv(x, weight, bias, is_gated=how["is_gated"])
    assert (out.shape, out.dtype) == ((rows, n), dtype)
    expected = reference.gemv(x, weight, bias, how["is_gated"])
    torch.testing.assert_close(out, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(("rows", "k", "n"), [(1, 1024, 200), (2, 2048, 65), (4, 3072, 33), (3, 64, 151), (1, 8, 1)])
def test_equals_its_twin(
    cuda_device: KernelDevice, dtype: torch.dtype, rows: int, k: int, n: int, *, is_gated: bool
) -> None:
    assert_equals_twin(cuda_device, dtype, rows, k, n, is_gated=is_gated, has_bias=True)


@ragged
@given(
    rows=st.integers(0, 4),
    k=st.integers(1, 90),
    n=st.integers(1, 40),
    gap=st.integers(0, 3),
    is_gated=st.booleans(),
    has_bias=st.booleans(),
    dtype=st.sampled_from(HALVES),
)
def test_takes_any_size(
    cuda_device: KernelDevice,
    rows: int,
    k: int,
    n: int,
    gap: int,
    dtype: torch.dtype,
    *,
    is_gated: bool,
    has_bias: bool,
) -> None:
    assert_equals_twin(cuda_device, dtype, rows, 8 * k, n, gap=8 * gap, is_gated=is_gated, has_bias=has_bias)


def test_a_row_does_not_depend_on_the_others(cuda_device: KernelDevice) -> None:
    x = torch.randn(4, 520, device=cuda_device.torch_name).bfloat16()
    weight = torch.randn(48, 520, device=cuda_device.torch_name).bfloat16()
    cuda_device.synchronize()
    together = ops.gemv(x, weight, is_gated=True)
    for i in range(4):
        assert torch.equal(ops.gemv(x[i : i + 1], weight, is_gated=True)[0], together[i])


def test_refuses_what_it_has_no_code_for(cuda_device: KernelDevice) -> None:
    half = torch.zeros(5, 16, device=cuda_device.torch_name, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="at most 4 rows"):
        ops.gemv(half, half)
    with pytest.raises(ValueError, match="K"):
        ops.gemv(half[:1], half[:, :8].contiguous())
    with pytest.raises(RuntimeError, match="no kernel for this shape"):
        ops.gemv(half[:1, :12], half[:, :12].contiguous())
    with pytest.raises(RuntimeError, match="no kernel for this combination of dtypes"):
        ops.gemv(half[:1].float(), half.float())


def test_few_rows_are_its_work_and_more_are_the_librarys(
    cuda_device: KernelDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And products with weights that are large, or no whole vectors wide."""
    counted: list[int] = []
    monkeypatch.setattr(products, "gemv", lambda x, *rest, **how: counted.append(len(x)) or gemv(x, *rest, **how))
    gemv = ops.gemv
    weight = torch.randn(64, 32, device=cuda_device.torch_name).bfloat16()
    x = torch.randn(7, 32, device=cuda_device.torch_name).bfloat16()
    cuda_device.synchronize()
    every = torch.nn.functional.linear(x, weight)
    for rows in (1, 4, 5, 7):
        torch.testing.assert_close(ops.dense_linear(x[:rows], weight, None), every[:rows], rtol=1.6e-2, atol=1.6e-2)
    monkeypatch.setattr(products, "MAX_GEMV_WEIGHT", 64 * 32 - 1)
    ops.dense_linear(x[:1], weight, None)
    ops.dense_linear(x[:1, :12], weight[:, :12].contiguous(), None)
    assert counted == [1, 4]
