"""The last columns of a product alone, as the projection of hidden states takes them: to the last bit the same."""

from __future__ import annotations

import pytest
import torch

from worker.models.layers.linear import DenseLinear, Linear, make_linear


@pytest.mark.parametrize("num_columns", [1, 32, 40, 64, 96])
@pytest.mark.parametrize("num_rows", [1, 7])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "dense"])
def test_last_columns(kind: str, num_rows: int, num_columns: int) -> None:
    torch.manual_seed(1)
    weight, bias, x = torch.randn(96, 33), torch.randn(96), torch.randn(num_rows, 33)
    linear: Linear
    if kind == "dense":
        linear = DenseLinear(weight, bias, False)
    else:
        dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
        linear = make_linear(weight.to(dtype), bias, quantization="int8" if kind == "int8" else None)
    whole, last = linear(x), linear.last_columns(num_columns)(x)
    assert last.shape == (num_rows, num_columns)
    if kind == "dense":  # the library sums in an order of its own
        torch.testing.assert_close(last, whole[:, -num_columns:])
    else:
        assert torch.equal(last, whole[:, -num_columns:])
