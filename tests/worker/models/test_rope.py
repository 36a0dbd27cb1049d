"""Rotation tables against transformers' formulas, from both spellings of config.json."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from worker.base.errors import CheckpointError, UnsupportedModelError
from worker.models.layers.rope import rope_frequencies, rope_table
from worker.models.rope_config import RopeConfig, parse_rope

HEAD_DIM = 64
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "llama3", **LLAMA3},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "truncate": False},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256, "beta_fast": 16.0, "beta_slow": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "attention_factor": 0.7},
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 1024,
        "mscale": 0.707,
        "mscale_all_dim": 1.1,
    },
]


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling["rope_type"])
def test_frequencies_equal_those_of_transformers(scaling: dict[str, Any], theta: float) -> None:
    config = LlamaConfig(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        max_position_embeddings=4096,
        rope_parameters={"rope_theta": theta, **scaling},
    )
    expected, expected_amplitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config)
    new_style = {"max_position_embeddings": 4096, "rope_parameters": {"rope_theta": theta, **scaling}}
    frequencies, amplitude = rope_frequencies(parse_rope(new_style), HEAD_DIM)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert amplitude == pytest.approx(expected_amplitude)


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling["rope_type"])
def test_both_spellings_mean_the_same(scaling: dict[str, Any]) -> None:
    shared = {"max_position_embeddings": 4096}
    old_scaling = {("type" if key == "rope_type" else key): value for key, value in scaling.items()}
    old_style = {**shared, "rope_theta": 5000.0, "rope_scaling": old_scaling}
    new_style = {**shared, "rope_parameters": {**scaling, "rope_theta": 5000.0}}
    assert parse_rope(old_style) == parse_rope(new_style)


def test_no_scaling_is_the_default_type() -> None:
    assert parse_rope({"rope_theta": 7.0, "rope_scaling": None}) == RopeConfig(theta=7.0)
    assert parse_rope({}) == RopeConfig(theta=10000.0)


def test_table_holds_cosines_then_sines() -> None:
    table = rope_table(RopeConfig(), HEAD_DIM, 100)
    frequencies, _ = rope_frequencies(RopeConfig(), HEAD_DIM)
    assert table.shape == (100, HEAD_DIM)
    torch.testing.assert_close(table[37, : HEAD_DIM // 2], torch.cos(37 * frequencies))
    torch.testing.assert_close(table[37, HEAD_DIM // 2 :], torch.sin(37 * frequencies))


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope", "su"])
def test_other_types_are_refused_by_name(rope_type: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"'{rope_type}'.*default, linear, llama3, yarn"):
        parse_rope({"rope_scaling": {"type": rope_type, "factor": 2.0}})


def test_partial_rotation_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"partial_rotary_factor 0\.5"):
        parse_rope({"partial_rotary_factor": 0.5})


def test_parameters_per_layer_type_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="per layer type"):
        parse_rope({"rope_parameters": {"full_attention": {"rope_type": "default"}}})


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(CheckpointError, match="low_freq_factor"):
        parse_rope(
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}},
        )
