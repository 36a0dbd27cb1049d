"""config.json of every family, as transformers writes it and as it was written years ago."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.tiny_checkpoints import FAMILIES, MAX_POSITIONS, VOCAB_SIZE, make_model
from worker.base.errors import CheckpointError, UnsupportedModelError
from worker.models.model_config import parse_model_config, read_model_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "torch_dtype": "float16",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_configuration_written_by_transformers_is_read(family: str, tmp_path: Path) -> None:
    config = make_model(family).config
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    saved.setdefault("architectures", [f"{FAMILIES[family][0]}ForCausalLM"])
    (tmp_path / "config.json").write_text(json.dumps(saved))

    parsed = read_model_config(tmp_path)
    assert (parsed.vocab_size, parsed.hidden_size, parsed.num_layers) == (VOCAB_SIZE, 64, 3)
    assert parsed.max_positions == MAX_POSITIONS
    assert parsed.is_tied == config.tie_word_embeddings
    assert parsed.head_dim == (getattr(config, "head_dim", None) or 16)
    assert parsed.num_kv_heads == getattr(config, "num_key_value_heads", 4)


def test_old_llama_configuration_gets_the_defaults_of_its_time() -> None:
    parsed = parse_model_config(LLAMA)
    assert (parsed.num_kv_heads, parsed.head_dim, parsed.kv_size) == (32, 128, 4096)
    assert parsed.rope is not None
    assert parsed.rope.theta == 10000.0
    assert not parsed.is_tied
    assert parsed.dtype == "float16"


def test_yarn_extends_the_context_when_the_checkpoint_states_the_original() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert parse_model_config({**LLAMA, "rope_scaling": scaling}).max_positions == 8192


def test_mistral_without_the_key_has_its_window_and_with_null_has_none() -> None:
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"]}
    assert parse_model_config(mistral).sliding_windows == (4096,) * 4
    assert parse_model_config({**mistral, "sliding_window": None}).sliding_windows == (0,) * 4


def test_qwen_windows_start_at_max_window_layers_and_only_if_used() -> None:
    qwen = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "max_window_layers": 3}
    assert parse_model_config({**qwen, "use_sliding_window": True}).sliding_windows == (0, 0, 0, 64)
    assert parse_model_config(qwen).sliding_windows == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["FalconForCausalLM"]}, r"FalconForCausalLM.*LlamaForCausalLM.*OPTForCausalLM"),
        ({"architectures": []}, r"architecture none.*LlamaForCausalLM"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"quantization_config.*fp8.*bfloat16"),
        ({"hidden_act": "gelu"}, r"'gelu'.*silu"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, r"'dynamic'.*yarn"),
        ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["linear_attention"]}, r"'linear_attention'"),
    ],
)
def test_what_we_cannot_run_is_refused_with_what_we_can(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        parse_model_config({**LLAMA, **change})


def test_a_missing_key_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"lacks intermediate_size.*LlamaForCausalLM"):
        parse_model_config({key: value for key, value in LLAMA.items() if key != "intermediate_size"})


def test_heads_must_share_kv_heads_evenly() -> None:
    with pytest.raises(CheckpointError, match=r"32.*multiple.*5"):
        parse_model_config({**LLAMA, "num_key_value_heads": 5})


def test_a_folder_without_config_says_what_a_model_is(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Hugging Face format"):
        read_model_config(tmp_path)


def test_a_damaged_config_is_reported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        read_model_config(tmp_path)
