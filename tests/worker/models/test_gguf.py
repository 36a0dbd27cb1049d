"""GGUF files: the same model as the checkpoint they were made of, and as transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from fakes.gguf_files import write_gguf
from fakes.tiny_checkpoints import make_model
from schedcore.api.model_path import ModelNotFoundError, resolve_model
from schedcore.gguf.gguf_folder import gguf_folder
from worker.base.errors import CheckpointError
from worker.models.loader import load_model
from worker.models.model_config import read_model_config

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "tied": ("llama-mha-tied", {}),
    "llama 3.1": ("llama", {"rope_parameters": LLAMA3}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All that the loader reads, by the hub's names."""
    from worker.models.loader import _open
    from worker.models.weight_names import expected_shapes, is_ignorable

    config = read_model_config(folder)
    expected = expected_shapes(config)
    with _open(folder, config) as checkpoint:
        checkpoint.check(expected, lambda name: is_ignorable(name, config))
        return {name: checkpoint.read(name).clone() for name in expected}


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_and_the_configuration_are_those_of_the_checkpoint(tmp_path: Path, name: str) -> None:
    family, overrides = MODELS[name]
    model = make_model(family, **overrides)
    model.save_pretrained(tmp_path / "hub")
    folder = gguf_folder(write_gguf(tmp_path / "model.gguf", model))
    ours, theirs = read_model_config(folder), read_model_config(tmp_path / "hub")
    assert ours == theirs
    read, saved = weights(folder), weights(tmp_path / "hub")
    assert read.keys() == saved.keys()
    for key in read:
        assert torch.equal(read[key], saved[key]), key
    loaded, dtype = load_model(folder, ours, dtype="auto")
    assert dtype is torch.float32
    assert loaded is not None


@pytest.mark.parametrize("stored_as", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"])
def test_blocks_are_read_as_transformers_reads_them(tmp_path: Path, stored_as: str) -> None:
    model = make_model("llama")
    path = write_gguf(tmp_path / "model.gguf", model, stored_as)
    expected = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    for name, tensor in weights(gguf_folder(path)).items():
        assert torch.equal(tensor, expected[name]), name


def test_the_folder_is_made_once_for_each_state_of_the_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", make_model("llama"))
    folder = resolve_model(str(path))
    assert resolve_model(str(path)) == folder
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    write_gguf(path, make_model("llama"), "F16")
    assert resolve_model(str(path)) != folder


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "longrope"),
        ({"model": "bert"}, "vocabulary of kind 'bert'"),
        ({"pre": "poro"}, "pre-tokenizer 'poro' is not supported; supported: gpt-2"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", make_model("llama"), settings=settings)
    with pytest.raises(ModelNotFoundError, match=words) as caught:
        resolve_model(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 3, 20, 500, 30_000])
def test_a_file_that_is_cut_off_is_an_error_of_one_line(tmp_path: Path, keep: int) -> None:
    path = write_gguf(tmp_path / "model.gguf", make_model("llama"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelNotFoundError, match=r"model\.gguf") as caught:
        resolve_model(str(path))
    assert "\n" not in str(caught.value)


def test_a_tensor_too_many_is_named(tmp_path: Path) -> None:
    model = make_model("llama")
    model.model.register_buffer("strange", torch.zeros(3))
    folder = gguf_folder(write_gguf(tmp_path / "model.gguf", model))
    with pytest.raises(CheckpointError, match=r"unexpected: model\.strange"):
        weights(folder)
