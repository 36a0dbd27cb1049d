from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker import _kernels, ops, ops_reference
from worker.packed_linear import PackedLinear
from worker.panels import quantize

WEIGHT_DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ragged = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


pytestmark = pytest.mark.usefixtures("cpu_device")  # other devices use their own library


def multiplies_bfloat16(weight: torch.Tensor) -> bool:
    return _kernels.isa() == "avx512_bf16" and weight.dtype in (torch.bfloat16, torch.int8)


def exact_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    x = x.bfloat16() if multiplies_bfloat16(weight) else x
    return ops_reference.linear(x.double(), weight.double(), None if bias is None else bias.double())


def assert_equals_twin(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    out = ops.linear(x, ops.pack_linear(weight, bias))
    assert out.is_contiguous()
    assert out.dtype is torch.float32
    scale = max(1.0, x.shape[1] ** 0.5)
    torch.testing.assert_close(out, exact_product(x, weight, bias).float(), rtol=1e-5, atol=6e-6 * scale)


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 8, 13, 17, 33, 100, 200])
def test_equals_its_twin_for_any_number_of_rows(dtype: torch.dtype, tokens: int) -> None:
    assert_equals_twin(torch.randn(tokens, 96), torch.randn(160, 96).to(dtype), torch.randn(160).to(dtype))


@pytest.mark.parametrize(("in_features", "out_features"), [(256, 4096), (2048, 256), (768, 2304), (896, 1152)])
@pytest.mark.parametrize("tokens", [1, 8, 40])
def test_equals_its_twin_on_shapes_of_models(tokens: int, in_features: int, out_features: int) -> None:
    assert_equals_twin(torch.randn(tokens, in_features), torch.randn(out_features, in_features).bfloat16(), None)


@ragged
@given(
    tokens=st.integers(0, 40),
    in_features=st.integers(1, 70),
    out_features=st.integers(1, 130),
    gap=st.integers(0, 5),
    dtype=st.sampled_from(WEIGHT_DTYPES),
    has_bias=st.booleans(),
)
def test_takes_any_shape(
    tokens: int, in_features: int, out_features: int, gap: int, dtype: torch.dtype, has_bias: bool
) -> None:
    x = torch.randn(tokens, in_features + gap)
    x[:, in_features:] = float("nan")
    bias = torch.randn(out_features).to(dtype) if has_bias else None
    assert_equals_twin(x[:, :in_features], torch.randn(out_features, in_features).to(dtype), bias)


@ragged
@given(
    tokens=st.integers(1, 40),
    in_features=st.integers(1, 70),
    out_features=st.integers(1, 80),
    dtype=st.sampled_from(WEIGHT_DTYPES),
    has_bias=st.booleans(),
)
def test_gated(tokens: int, in_features: int, out_features: int, dtype: torch.dtype, has_bias: bool) -> None:
    x, weight = torch.randn(tokens, in_features), torch.randn(2 * out_features, in_features).to(dtype)
    bias = torch.randn(2 * out_features) if has_bias else None
    out = ops.linear(x, ops.pack_linear(weight, bias, is_gated=True))
    expected = ops_reference.silu_mul(exact_product(x, weight, bias).float())
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=2e-5 * max(1.0, in_features))


def run_kernel(x: torch.Tensor, packed: PackedLinear, out: torch.Tensor, *, is_added: bool = False) -> None:
    """What C++ callers of the product can ask for and ops.linear() does not."""
    _kernels.linear(
        out.data_ptr(), x.data_ptr(), packed.weight.data_ptr(), 0 if packed.bias is None else packed.bias.data_ptr(),
        x.shape[0], packed.in_features, packed.out_features, x.stride(0), out.stride(0), packed.panel_width,
        ops._WEIGHT_DTYPES[packed.weight.dtype], ops._DTYPES[x.dtype], ops._DTYPES[out.dtype], packed.is_gated,
        is_added,
    )  # fmt: skip


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 5, 9, 40])
def test_adds_to_what_is_there(tokens: int, dtype: torch.dtype, is_gated: bool) -> None:
    x, packed = torch.randn(tokens, 66), ops.pack_linear(torch.randn(94, 66).to(dtype), is_gated=is_gated)
    wide = torch.randn(tokens, 100)
    before = wide.clone()
    run_kernel(x, packed, wide[:, 3 : 3 + packed.out_features], is_added=True)
    before[:, 3 : 3 + packed.out_features] += ops.linear(x, packed)
    assert torch.equal(wide, before)


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("tokens", [1, 5, 9, 40])
def test_stores_bfloat16(tokens: int, is_gated: bool) -> None:
    x, packed = torch.randn(tokens, 66), ops.pack_linear(torch.randn(94, 66).bfloat16(), is_gated=is_gated)
    wide = torch.zeros(tokens, 100, dtype=torch.bfloat16)
    run_kernel(x, packed, wide[:, 3 : 3 + packed.out_features])
    assert torch.equal(wide[:, 3 : 3 + packed.out_features], ops.linear(x, packed).bfloat16())
    assert wide[:, :3].count_nonzero() == wide[:, 3 + packed.out_features :].count_nonzero() == 0


@pytest.mark.parametrize("tokens", [1, 5, 9, 40])
def test_takes_bfloat16_where_it_multiplies_it(tokens: int) -> None:
    x, weight = torch.randn(tokens, 66).bfloat16(), torch.randn(50, 66).bfloat16()
    packed, out = ops.pack_linear(weight), torch.empty(tokens, 50)
    if multiplies_bfloat16(weight):
        run_kernel(x, packed, out)
        assert torch.equal(out, ops.linear(x.float(), packed))
    else:
        with pytest.raises(RuntimeError, match="dtypes"):
            run_kernel(x, packed, out)


@ragged
@given(
    tokens=st.integers(0, 40),
    in_features=st.integers(1, 70),
    out_features=st.integers(1, 80),
    has_bias=st.booleans(),
    is_gated=st.booleans(),
)
def test_int8(tokens: int, in_features: int, out_features: int, has_bias: bool, is_gated: bool) -> None:
    x, weight = torch.randn(tokens, in_features), torch.randn(2 * out_features, in_features)
    weight[0] = 0
    bias = torch.randn(2 * out_features) if has_bias else None
    out = ops.linear(x, ops.pack_linear(weight, bias, is_gated=is_gated, is_int8=True))
    integers, scales = quantize(weight)
    x = x.bfloat16() if multiplies_bfloat16(integers) else x
    expected = x.double() @ (integers * scales[:, None].double()).T + (0 if bias is None else bias.double())
    expected = ops_reference.silu_mul(expected.float()) if is_gated else expected.float()
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=2e-5 * max(1.0, in_features))


@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 6, 11, 12, 13, 24, 25, 100])
def test_int8_for_any_number_of_rows(tokens: int) -> None:
    """Every integer there is, with either sign."""
    integers = torch.arange(-127, 128).repeat(3)[:640].view(10, 64).to(torch.int8)
    integers[:, 0] = 127  # so that the scale is one
    x = torch.randint(-4, 5, (tokens, 64)).float()
    out = ops.linear(x, ops.pack_linear(integers.float(), is_int8=True))
    assert torch.equal(out, (x.double() @ integers.double().T).float())


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize(("in_features", "out_features"), [(96, 160), (301, 70), (2048, 256)])
def test_row_does_not_depend_on_its_company(in_features: int, out_features: int, is_int8: bool) -> None:
    weight = torch.randn(out_features, in_features).bfloat16()
    if not multiplies_bfloat16(weight):
        pytest.skip("holds to the last bit where bfloat16 is multiplied")
    x, packed = torch.randn(130, in_features), ops.pack_linear(weight, is_int8=is_int8)
    alone = torch.cat([ops.linear(row[None], packed) for row in x])
    for tokens in range(2, 131):
        assert torch.equal(ops.linear(x[:tokens], packed), alone[:tokens]), tokens


def test_packing_copies() -> None:
    weight, bias, x = torch.randn(8, 8), torch.randn(8), torch.randn(2, 8)
    packed = ops.pack_linear(weight, bias)
    before = ops.linear(x, packed)
    weight.zero_()
    bias.zero_()
    assert torch.equal(ops.linear(x, packed), before)


def test_row_does_not_depend_on_its_company_beyond_rounding() -> None:
    x, packed = torch.randn(50, 300), ops.pack_linear(torch.randn(70, 300).bfloat16())
    together = ops.linear(x, packed)
    alone = torch.cat([ops.linear(row[None], packed) for row in x])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=5e-5)


def test_refuses_a_weight_packed_for_another_instruction_set() -> None:
    before = _kernels.isa()
    packed = ops.pack_linear(torch.randn(8, 8))
    _kernels.set_isa("generic" if before != "generic" else "avx2")
    try:
        with pytest.raises(RuntimeError, match="another instruction set"):
            ops.linear(torch.randn(2, 8), packed)
    finally:
        _kernels.set_isa(before)


def test_refuses_what_does_not_fit() -> None:
    packed = ops.pack_linear(torch.randn(8, 16))
    with pytest.raises(ValueError, match="expected float32"):
        ops.linear(torch.randn(2, 15), packed)
    with pytest.raises(ValueError, match="expected float32"):
        ops.linear(torch.randn(2, 16).double(), packed)
    with pytest.raises(ValueError, match="bias"):
        ops.pack_linear(torch.randn(8, 16), torch.randn(7))
