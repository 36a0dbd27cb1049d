from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker import _kernels, ops
from worker.ops import native, reference
from worker.ops.weights.packed_linear import PackedLinear
from worker.ops.weights.panels import INT4_BLOCK, INT8_BLOCK, quantize, quantize_blocks, quantize_int4
from worker.ops.weights.rounded_weight import RoundedWeight

WEIGHT_DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ragged = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


pytestmark = pytest.mark.usefixtures("cpu_device")  # other devices use their own library


def multiplies_bfloat16(weight: torch.Tensor) -> bool:
    return _kernels.isa() in ("avx512_bf16", "avx512_amx") and weight.dtype in (torch.bfloat16, torch.int8)


def exact_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    x = x.bfloat16() if multiplies_bfloat16(weight) else x
    return reference.linear(x.double(), weight.double(), None if bias is None else bias.double())


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


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8-weights"])
@pytest.mark.parametrize(
    ("tokens", "in_features"), [(64, 1024), (65, 520), (81, 777), (97, 2048), (130, 4864), (512, 600)]
)
def test_rows_in_crowds_are_those_of_a_row_alone(tokens: int, in_features: int, kind: str) -> None:
    """To the last bit, also where the columns are added up in parts."""
    x, weight = torch.randn(tokens, in_features), torch.randn(70, in_features)
    quantization = kind if kind == "int8-weights" else None
    packed = ops.pack_linear(weight if quantization else weight.to(getattr(torch, kind)), quantization=quantization)
    together = ops.linear(x, packed)
    for i in {0, 15, 16, 31, 32, 63, tokens - 1}:
        assert torch.equal(together[i], ops.linear(x[i : i + 1], packed)[0])


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
    expected = reference.silu_mul(exact_product(x, weight, bias).float())
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=2e-5 * max(1.0, in_features))


def run_kernel(x: torch.Tensor, packed: PackedLinear, out: torch.Tensor, *, is_added: bool = False) -> None:
    """What C++ callers of the product can ask for and ops.linear() does not."""
    _kernels.linear(
        out.data_ptr(), x.data_ptr(), packed.weight.data_ptr(), 0 if packed.bias is None else packed.bias.data_ptr(),
        x.shape[0], packed.in_features, packed.out_features, x.stride(0), out.stride(0), packed.panel_width,
        packed.form, native.DTYPES[x.dtype], native.DTYPES[out.dtype], packed.is_gated,
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
    out = ops.linear(x, ops.pack_linear(weight, bias, is_gated=is_gated, quantization="int8-weights"))
    integers, scales = quantize(weight)
    x = x.bfloat16() if multiplies_bfloat16(integers) else x
    expected = x.double() @ (integers * scales[:, None].double()).T + (0 if bias is None else bias.double())
    expected = reference.silu_mul(expected.float()) if is_gated else expected.float()
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=2e-5 * max(1.0, in_features))


@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 6, 11, 12, 13, 24, 25, 100])
def test_int8_for_any_number_of_rows(tokens: int) -> None:
    """Every integer there is, with either sign."""
    integers = torch.arange(-127, 128).repeat(3)[:640].view(10, 64).to(torch.int8)
    integers[:, 0] = 127  # so that the scale is one
    x = torch.randint(-4, 5, (tokens, 64)).float()
    out = ops.linear(x, ops.pack_linear(integers.float(), quantization="int8-weights"))
    assert torch.equal(out, (x.double() @ integers.double().T).float())


def product_in_blocks(x: torch.Tensor, weight: torch.Tensor, quantization: str) -> torch.Tensor:
    """x weight^T, both rounded in blocks; all in float32 but what the kernel adds up exactly."""
    of_weight, size = (quantize_blocks, INT8_BLOCK) if quantization == "int8" else (quantize_int4, INT4_BLOCK)
    (weights, of_columns), (rows, of_rows) = of_weight(weight), quantize_rows(x)
    total = torch.zeros(x.shape[0], weight.shape[0])
    for block in range(of_columns.shape[1]):
        part = slice(block * size, (block + 1) * size)
        dots = (rows[:, part].double() @ weights[:, part].double().T).float()
        scales = of_rows[:, block * size // INT8_BLOCK, None] * of_columns[None, :, block].float()
        total = (dots.double() * scales.double() + total.double()).float()  # rounded once, as fma() does
    return total


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = torch.nn.functional.pad(x, (0, -x.shape[1] % INT8_BLOCK)).unflatten(1, (-1, INT8_BLOCK))
    largest = blocks.abs().amax(dim=2)
    # not 127 / largest, which torch takes for 127 times the reciprocal
    inverse = torch.where(largest > 0, torch.full_like(largest, 127) / largest, 0)
    return (blocks * inverse[:, :, None]).round().flatten(1)[:, : x.shape[1]], largest / 127


@ragged
@given(
    tokens=st.integers(1, 40),
    in_features=st.integers(1, 300),
    out_features=st.integers(1, 80),
    has_bias=st.booleans(),
    is_gated=st.booleans(),
    quantization=st.sampled_from(["int8", "int4"]),
)
def test_in_blocks(
    tokens: int, in_features: int, out_features: int, has_bias: bool, is_gated: bool, quantization: str
) -> None:
    x, weight = torch.randn(tokens, in_features), torch.randn(2 * out_features, in_features)
    x[tokens // 2 :, : in_features // 2] = 0
    weight[0] = 0
    bias = torch.randn(2 * out_features) if has_bias else None
    out = ops.linear(x, ops.pack_linear(weight, bias, is_gated=is_gated, quantization=quantization))
    expected = product_in_blocks(x, weight, quantization) + (0 if bias is None else bias)
    if not is_gated and _kernels.isa() != "generic":  # which rounds twice, as the twin does once in a while
        assert (out != expected).sum() <= 2 + out.numel() // 20
    torch.testing.assert_close(out, reference.silu_mul(expected) if is_gated else expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 6, 7, 12, 13, 100])
def test_int8_in_blocks_with_every_pair_of_integers(tokens: int) -> None:
    """Also where all of a block are at their limits: no sum on the way may overflow."""
    values = torch.arange(-127, 128).float()
    weight = torch.stack([values.repeat_interleave(255), torch.full((255 * 255,), -127.0), values.repeat(255)])
    x = values.repeat(255).expand(tokens, -1).clone()
    x[tokens // 2 :] = -127.0
    weight[:, ::INT8_BLOCK], x[:, ::INT8_BLOCK] = 127.0, 127.0  # so that every scale is one
    expected = torch.stack([sum_of_blocks(row * weight) for row in x])
    assert torch.equal(ops.linear(x, ops.pack_linear(weight, quantization="int8")), expected)


@pytest.mark.parametrize("tokens", [1, 4, 7])
def test_int8_of_checkpoints_may_have_the_lowest_of_all_bytes(tokens: int) -> None:
    """-128, which our own rounding leaves out."""
    integers = torch.randint(-128, 128, (3, 2 * INT8_BLOCK), dtype=torch.int8)
    integers[1] = -128
    x = torch.randint(-127, 128, (tokens, 2 * INT8_BLOCK)).float()
    x[tokens // 2] = -127.0
    x[:, ::INT8_BLOCK] = 127.0  # so that every scale is one
    out = ops.linear(x, ops.pack_linear(RoundedWeight(integers, torch.ones(3, 2), "int8")))
    assert torch.equal(out, (x.double() @ integers.double().T).float())


def sum_of_blocks(products: torch.Tensor) -> torch.Tensor:
    blocks = torch.nn.functional.pad(products, (0, -products.shape[1] % INT8_BLOCK)).view(3, -1, INT8_BLOCK)
    total = torch.zeros(3)
    for block in blocks.double().sum(2).float().unbind(1):
        total = total + block
    return total


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 6, 7, 12, 13])
def test_int4_with_every_pair_of_integers(tokens: int) -> None:
    """Also where all of a block are at their limits: no sum on the way may overflow."""
    levels = torch.arange(-8, 8).float()
    weight = torch.stack([levels.repeat_interleave(255), torch.full((16 * 255,), -8.0), levels.repeat(255)])
    x = torch.arange(-127, 128).float().repeat(16).expand(tokens, -1).clone()
    x[tokens // 2 :] = -127.0
    weight[:, ::INT4_BLOCK], x[:, ::INT8_BLOCK] = -8.0, 127.0  # so that every scale is one
    out = ops.linear(x, ops.pack_linear(weight, quantization="int4"))
    assert torch.equal(out, (x.double() @ weight.double().T).float())


def test_int4_uses_all_levels() -> None:
    levels = torch.arange(-8, 8).repeat(6)[None]
    integers, scales = quantize_int4(-0.25 * levels)
    assert torch.equal(integers, levels.to(torch.int8))
    assert scales.tolist() == [[-0.25] * 3]


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("spoiled", [float("nan"), float("inf")])
def test_in_blocks_what_is_not_finite_is_not_hidden(spoiled: float, quantization: str) -> None:
    x = torch.randn(5, 300)
    x[3, 200] = spoiled
    out = ops.linear(x, ops.pack_linear(torch.randn(40, 300), quantization=quantization))
    assert out[3].isnan().all()
    assert out[[0, 1, 2, 4]].isfinite().all()


@pytest.mark.parametrize("tokens", [1, 7])
def test_int8_in_blocks_takes_tiny_and_huge_rows(tokens: int) -> None:
    weight = torch.randn(40, 300)
    packed = ops.pack_linear(weight, quantization="int8")
    for factor in (1e-30, 1e30):
        x = torch.randn(tokens, 300)
        out = ops.linear(x * factor, packed)
        torch.testing.assert_close(out / factor, x @ weight.T, rtol=0.1, atol=2.0)
    assert ops.linear(torch.randn(tokens, 300) * 1e-38, packed).count_nonzero() == 0


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4", "int8-weights"])
@pytest.mark.parametrize(("in_features", "out_features"), [(96, 160), (301, 70), (1024, 256), (5001, 40)])
def test_row_does_not_depend_on_its_company(
    in_features: int, out_features: int, kind: str, has_bias: bool, is_gated: bool
) -> None:
    """To the last bit, also where the threads have other panels together, and where long rows are taken in parts."""
    weight = torch.randn(out_features, in_features).to(torch.bfloat16 if kind == "bfloat16" else torch.float32)
    bias = torch.randn(out_features) if has_bias else None
    x = torch.randn(130, in_features)
    packed = ops.pack_linear(weight, bias, is_gated=is_gated, quantization=kind if kind.startswith("int") else None)
    alone = torch.cat([ops.linear(row[None], packed) for row in x])
    for tokens in (*range(2, 20), 33, 96, 97, 98, 130):
        assert torch.equal(ops.linear(x[:tokens], packed), alone[:tokens]), tokens
    assert torch.equal(ops.linear(x[40:51], packed), alone[40:51])


def test_packing_copies() -> None:
    weight, bias, x = torch.randn(8, 8), torch.randn(8), torch.randn(2, 8)
    packed = ops.pack_linear(weight, bias)
    before = ops.linear(x, packed)
    weight.zero_()
    bias.zero_()
    assert torch.equal(ops.linear(x, packed), before)


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
