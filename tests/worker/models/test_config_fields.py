"""config.json, weight files and indices that are not what they should be: one line each that names what is wrong."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from worker.base.errors import CheckpointError, WorkerError
from worker.models.model_config import parse_model_config, read_model_config
from worker.models.tensor_files import TensorFiles

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}


@pytest.mark.parametrize("config", [[], None, 5, "x", [{"architectures": ["LlamaForCausalLM"]}]])
def test_what_is_no_object_is_named(config: object) -> None:
    with pytest.raises(CheckpointError, match="not a JSON object"):
        parse_model_config(config)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", "4"),
        ("num_hidden_layers", 2**40),
        ("vocab_size", 0),
        ("vocab_size", 100.5),
        ("vocab_size", True),
        ("hidden_size", [64]),
        ("num_attention_heads", -4),
        ("num_key_value_heads", "2"),
        ("head_dim", -16),
        ("max_position_embeddings", -5),
        ("max_position_embeddings", math.inf),
        ("rms_norm_eps", "1e-6"),
        ("rms_norm_eps", math.nan),
        ("rope_theta", 0),
        ("rope_theta", "x"),
        ("rope_scaling", "x"),
        ("rope_parameters", ["yarn"]),
        ("hidden_act", 5),
        ("torch_dtype", {"a": 1}),
        ("architectures", "LlamaForCausalLM"),
        ("architectures", [["LlamaForCausalLM"]]),
        ("layer_types", "full_attention"),
        ("layer_types", [[]]),
        ("sliding_window", "64"),
        ("max_window_layers", -1),
    ],
)
def test_fields_of_a_wrong_kind_are_named(name: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=rf"^config\.json: {name} must be [^\n]*, not "):
        parse_model_config(LLAMA | {name: value})


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "max_position_embeddings", "intermediate_size"])
def test_null_is_as_good_as_absent(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"lacks {name}"):
        parse_model_config(LLAMA | {name: None})


@pytest.mark.parametrize(
    "config",
    [
        QWEN2 | {"layer_types": ["full_attention"]},
        LLAMA | {"num_attention_heads": 3, "num_key_value_heads": 2},
        LLAMA | {"num_attention_heads": 128},
        LLAMA | {"head_dim": 15},
        LLAMA | {"rope_scaling": {"type": "linear", "factor": "4"}},
        LLAMA | {"rope_scaling": {"type": "linear", "factor": math.nan}},
        LLAMA | {"rope_scaling": {"type": "linear", "factor": 1e30}},
        LLAMA | {"rope_scaling": {"type": "yarn", "factor": 0.5, "original_max_position_embeddings": "x"}},
        LLAMA | {"rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": -1}},
        LLAMA | {"rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 4}},
        LLAMA | {"rope_scaling": {"rope_type": ["yarn"], "factor": 4}},
        LLAMA
        | {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8,
                "low_freq_factor": 1,
                "high_freq_factor": 1,
                "original_max_position_embeddings": 64,
            }
        },
    ],
)
def test_fields_that_do_not_fit_each_other_are_named(config: dict[str, Any]) -> None:
    with pytest.raises(WorkerError) as caught:
        parse_model_config(config)
    assert "\n" not in str(caught.value)


def test_nesting_without_end_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 200_000)
    with pytest.raises(CheckpointError, match="not valid JSON"):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        "{}",
        '{"weight_map": [1]}',
        '{"weight_map": {"a": 5}}',
        '{"weight_map": {"a": null}}',
        '{"weight_map": {"a": ["b"]}}',
        '{"weight_map": {"a": "../../etc/passwd"}}',
        '{"weight_map": {"a": "a\\u0000b"}}',
        "{" * 100_000,
        '{"weight_map": {"a": ""}}',
    ],
)
def test_damaged_indices_are_named(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError) as caught:
        TensorFiles(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "part.safetensors"])
def test_a_pipe_is_no_weight_file(tmp_path: Path, name: str) -> None:
    """Opening it would wait for a writer for ever."""
    os.mkfifo(tmp_path / name)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "part.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"part\.safetensors is (not a file|missing)"):
        TensorFiles(tmp_path)
