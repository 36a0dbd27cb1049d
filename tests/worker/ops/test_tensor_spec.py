import pytest
import torch

from worker.ops.tensor_spec import match


def test_returns_sizes_and_strides_in_the_order_of_the_spec() -> None:
    x = torch.empty(3, 20)[:, :16]
    assert match("x[T,H|s,1] weight[H|1]", x, torch.empty(16)) == (3, 16, 20)


def test_contiguous_tensor_has_the_strides_of_its_shape() -> None:
    assert match("q[T,n,d|s,t,1]", torch.empty(5, 4, 8)) == (5, 4, 8, 32, 8)


def test_symbol_must_mean_the_same_everywhere() -> None:
    with pytest.raises(ValueError, match="H is 16, not 15"):
        match("x[T,H|s,1] weight[H|1]", torch.empty(3, 16), torch.empty(15))


def test_number_of_dimensions_must_fit() -> None:
    with pytest.raises(ValueError, match="x has 3 dimensions"):
        match("x[T,H|s,1]", torch.empty(3, 2, 16))


def test_stride_must_fit() -> None:
    with pytest.raises(ValueError, match="x has strides"):
        match("x[T,H|s,1]", torch.empty(16, 3).T)
    with pytest.raises(ValueError, match="weight has strides"):
        match("weight[H|1]", torch.empty(1).expand(4))


def test_stride_of_a_single_row_does_not_matter() -> None:
    row = torch.empty(3, 20)[:1, :16]
    assert match("x[T,H|H,1]", row) == (1, 16)
    assert match("x[T,H|s,1]", row.T.contiguous().T)[:2] == (1, 16)


def test_empty_tensor_fits() -> None:
    assert match("x[T,H|s,1]", torch.empty(0, 16))[:2] == (0, 16)
