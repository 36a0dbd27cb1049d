"""GPTQ, AWQ and compressed-tensors: what their packers mean is what is read, and what is computed with."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes.rounded_checkpoints import PACKERS, Rounding, quantization_config, round_checkpoint
from fakes.tiny_checkpoints import make_model
from worker.base.errors import CheckpointError, UnsupportedModelError
from worker.models.loader import load_model
from worker.models.model_config import read_model_config
from worker.models.quantized.quantized_tensors import QuantizedTensors
from worker.models.weight_names import expected_shapes, is_ignorable
from worker.ops.weights.packed_linear import WeightForm
from worker.ops.weights.rounded_weight import INT4, INT8, GroupedWeight

from .test_loader import PROMPT, logits_of

G32, G64, G128 = (Rounding(group_size=size) for size in (32, 64, 128))
ASYMMETRIC = Rounding(group_size=128, is_symmetric=False)
ORDERED = Rounding(group_size=128, has_order=True)
CASES: list[tuple[str, Rounding, str | None]] = [  # what each is computed in; None: it is unpacked
    ("gptq", G128, INT4),
    ("gptq", G32, INT4),
    ("gptq", Rounding(), INT4),
    ("gptq", ORDERED, None),
    ("gptq", ASYMMETRIC, INT8),
    ("gptq_v2", ASYMMETRIC, INT8),
    ("gptq", Rounding(num_bits=8, group_size=128), INT8),
    ("gptq", Rounding(num_bits=8, group_size=64), None),
    ("gptq", Rounding(num_bits=8, is_symmetric=False), None),
    ("awq", ASYMMETRIC, INT8),
    ("awq", Rounding(group_size=64, is_symmetric=False), None),
    ("awq", G64, INT4),
    ("pack-quantized", G128, INT4),
    ("pack-quantized", ORDERED, None),
    ("pack-quantized", ASYMMETRIC, INT8),
    ("pack-quantized", Rounding(num_bits=8), INT8),
    ("int-quantized", Rounding(num_bits=8), INT8),
    ("int-quantized", Rounding(num_bits=8, is_symmetric=False), None),
]  # fmt: skip


def case_name(value: object) -> str:
    if not isinstance(value, Rounding):
        return str(value)
    words = [f"{value.num_bits} bits", f"groups of {value.group_size}"]
    words += [] if value.is_symmetric else ["zero points"]
    return ", ".join(words + (["order"] if value.has_order else []))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model")


def write(folder: Path) -> Path:
    make_model("llama", hidden_size=256, intermediate_size=384).save_pretrained(folder)
    return folder


def opened(folder: Path) -> QuantizedTensors:
    config = read_model_config(folder)
    assert config.quantization is not None
    tensors = QuantizedTensors(folder, config.quantization, expected_shapes(config))
    tensors.check(expected_shapes(config), lambda name: is_ignorable(name, config))
    return tensors


@pytest.mark.parametrize(("method", "rounding", "form"), CASES, ids=case_name)
def test_what_the_packer_means_is_read_to_the_last_bit(
    folder: Path, method: str, rounding: Rounding, form: str | None
) -> None:
    meant = round_checkpoint(folder, method, rounding)
    with opened(folder) as tensors:
        for name, weight in meant.items():
            np.testing.assert_array_equal(tensors.read(name).numpy(), weight, err_msg=name)
            integers = tensors.integers(name.removesuffix(".weight"))
            assert integers is not None
            in_ours = {quantization: integers.as_rounded(quantization) for quantization in (INT4, INT8)}
            assert form is None or in_ours[form] is not None
            for rounded in in_ours.values():
                if rounded is not None:
                    np.testing.assert_array_equal(rounded.dequantized().numpy(), weight)


@pytest.mark.parametrize(("method", "rounding", "form"), CASES, ids=case_name)
def test_products_are_computed_with_its_integers_where_our_blocks_can_say_them(
    folder: Path, method: str, rounding: Rounding, form: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    dense = write(folder.with_name("dense"))
    meant = round_checkpoint(folder, method, rounding)
    tensors = load_file(dense / "model.safetensors")
    save_file(tensors | {name: torch.from_numpy(weight) for name, weight in meant.items()}, dense / "model.safetensors")
    with caplog.at_level(logging.INFO, "worker"):
        model, _ = load_model(folder, read_model_config(folder))
    expected = {INT4: WeightForm.INT4, INT8: WeightForm.INT8, None: WeightForm.FLOAT32}[form]
    assert {layer.mlp.down.packed.form for layer in model.layers} == {expected}  # type: ignore[attr-defined]
    assert model.head.vocabulary.packed.form is WeightForm.FLOAT32  # type: ignore[union-attr]
    said = f"12 as {form}" if form else "12 products of the"
    assert any(said in message for message in caplog.messages)
    exact = logits_of(load_model(dense, read_model_config(dense))[0], PROMPT)
    difference = (logits_of(model, PROMPT) - exact).norm() / exact.norm()
    assert difference <= (1e-6 if form is None else 0.15)  # activations are rounded


def test_another_form_rounds_only_where_it_must(folder: Path) -> None:
    meant = round_checkpoint(folder, "pack-quantized", G128)
    with opened(folder) as tensors:
        first = next(iter(meant)).removesuffix(".weight")
        weight = tensors.integers(first)
        assert weight is not None
        in_bytes = weight.as_rounded(INT8)
        assert in_bytes is not None
        assert torch.equal(in_bytes.dequantized(), weight.dequantized())
    model, _ = load_model(folder, read_model_config(folder), quantization=INT8)
    assert model.layers[0].mlp.down.packed.form is WeightForm.INT8  # type: ignore[attr-defined]
    ordered = write(folder.with_name("ordered"))
    round_checkpoint(ordered, "gptq", ORDERED)
    model, _ = load_model(ordered, read_model_config(ordered), quantization=INT8)
    assert model.layers[0].mlp.down.packed.form is WeightForm.INT8  # type: ignore[attr-defined]


def test_scales_that_float16_cannot_say_are_not_taken_for_int4() -> None:
    integers, group_of = torch.full((2, 32), 7, dtype=torch.int16), torch.zeros(32, dtype=torch.int64)
    assert GroupedWeight(integers, torch.full((2, 1), 0.5), group_of).as_rounded(INT4) is not None
    for scale in (0.1, 1e-9, 1e6):
        weight = GroupedWeight(integers, torch.full((2, 1), scale), group_of)
        assert weight.as_rounded(INT4) is None
        assert weight.as_rounded(INT8) is not None


def test_modules_that_were_left_alone_stay_as_they_are(folder: Path) -> None:
    before = load_file(folder / "model.safetensors")
    round_checkpoint(folder, "gptq", G128)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj"
    kept = {key: tensor for key, tensor in tensors.items() if not key.startswith(name)}
    save_file(kept | {f"{name}.weight": before[f"{name}.weight"]}, folder / "model.safetensors")
    model, _ = load_model(folder, read_model_config(folder))
    forms = [layer.mlp.up.packed.form for layer in model.layers]  # type: ignore[attr-defined]
    assert forms == [WeightForm.INT4, WeightForm.FLOAT32, WeightForm.INT4]  # gate and up are one product
    assert logits_of(model, PROMPT).isfinite().all()


def test_biases_of_zeros_that_packers_add_are_passed_over(folder: Path) -> None:
    round_checkpoint(folder, "gptq", G128)
    tensors, name = load_file(folder / "model.safetensors"), "model.layers.0.mlp.up_proj.bias"
    save_file(tensors | {name: torch.zeros(384).half()}, folder / "model.safetensors")
    load_model(folder, read_model_config(folder))
    save_file(tensors | {name: torch.ones(384).half()}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"unexpected: model\.layers\.0\.mlp\.up_proj\.bias"):
        load_model(folder, read_model_config(folder))


def test_scales_of_activations_and_of_the_cache_are_passed_over(folder: Path) -> None:
    round_checkpoint(folder, "int-quantized", Rounding(num_bits=8))
    tensors, layer = load_file(folder / "model.safetensors"), "model.layers.0."
    others = {f"{layer}mlp.up_proj.input_scale": torch.ones(1), f"{layer}self_attn.k_scale": torch.ones(1)}
    save_file(tensors | others, folder / "model.safetensors")
    model, _ = load_model(folder, read_model_config(folder))
    assert logits_of(model, PROMPT).isfinite().all()


@pytest.mark.parametrize("method", PACKERS)
@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("scale", torch.ones(3, 5, 2), r"scales? is \[3, (5, 2|2, 5)\]"),
        ("scale", torch.ones(384, 128, dtype=torch.int32), "must be floating point"),
        ("q", torch.zeros(3, 3, dtype=torch.int32), r"is \[3, 3\]"),
        ("q", None, "missing"),
    ],
)
def test_damaged_parts_are_named(folder: Path, method: str, part: str, value: Any, words: str) -> None:
    rounding = Rounding(num_bits=8) if method == "int-quantized" else G128
    round_checkpoint(folder, method, rounding)
    of_scales = "scales" if method in ("gptq", "gptq_v2", "awq") else "weight_scale"
    of_values = {"pack-quantized": "weight_packed", "int-quantized": "weight"}.get(method, "qweight")
    module = "model.layers.1.mlp.gate_proj"
    name = f"{module}.{of_scales if part == 'scale' else of_values}"
    tensors = load_file(folder / "model.safetensors")
    if method == "int-quantized" and part == "q" and value is not None:
        value = value.to(torch.int8)
    assert name in tensors
    del tensors[name]
    save_file(tensors if value is None else tensors | {name: value}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{module}.*({words})|({words}).*{module}") as caught:
        load_model(folder, read_model_config(folder))
    assert "\n" not in str(caught.value)


def test_scales_that_are_not_finite_are_refused(folder: Path) -> None:
    round_checkpoint(folder, "gptq", G128)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.scales"][1, 3] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.down_proj.*not finite"):
        load_model(folder, read_model_config(folder))


def test_groups_that_are_not_those_of_the_configuration_are_refused(folder: Path) -> None:
    round_checkpoint(folder, "awq", G128)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["group_size"] = 96
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"2 groups of 96 in 256 columns"):
        load_model(folder, read_model_config(folder))


COMPRESSED = quantization_config("pack-quantized", G128)


def of_weights(**changes: Any) -> dict[str, Any]:
    group = COMPRESSED["config_groups"]["group_0"]
    return COMPRESSED | {"config_groups": {"group_0": group | {"weights": group["weights"] | changes}}}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes'.*gptq, awq, compressed-tensors"),
        ({"quant_method": "fp8"}, "'fp8'"),
        ({"bits": 4}, "quant_method None"),
        ({"quant_method": ["gptq"]}, r"quant_method \['gptq'\]"),
        ({"quant_method": "gptq", "bits": 3}, "3 bits in gptq.*4 and 8"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "'marlin'"),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "'marlin'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "'gemv'.*gemm"),
        ({"quant_method": "awq", "bits": 8}, "8 bits in awq"),
        (of_weights(num_bits=3), "3 bits in compressed-tensors"),
        (of_weights(type="float", num_bits=8), "type 'float'"),
        (of_weights(strategy="block"), "'block'.*tensor, channel, group"),
        (COMPRESSED | {"format": "nvfp4-pack-quantized"}, "'nvfp4-pack-quantized'.*pack-quantized"),
        (COMPRESSED | {"format": "marlin-24"}, "'marlin-24'"),
        (COMPRESSED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        (COMPRESSED | {"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
    ],
)
def test_what_is_not_taken_is_refused_by_name(folder: Path, given: dict[str, Any], words: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": given}))
    with pytest.raises(UnsupportedModelError, match=words) as caught:
        read_model_config(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["gptq", [1], {"quant_method": "compressed-tensors"}])
def test_what_is_no_configuration_is_refused(folder: Path, given: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": given}))
    with pytest.raises(CheckpointError, match=r"quantization_config"):
        read_model_config(folder)
