"""The files that peers serve hold the weights that we serve."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bench.lib.model.random_model import LlamaShape, write_checkpoint
from bench.run.peers.write_gguf import write_gguf
from bench.run.peers.write_w8a8 import write_w8a8
from worker.models.gguf_tensors import GgufTensors
from worker.models.loader import load_model
from worker.models.model_config import read_model_config

SHAPE = LlamaShape(64, 2, 4, 2, 96, vocab_size=600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "random-tiny"
    write_checkpoint(path, SHAPE)
    return path


@pytest.mark.parametrize(("stored_as", "tolerance"), [("BF16", 0.0), ("Q8_0", 0.02), ("Q4_0", 0.25)])
def test_gguf_files_hold_the_checkpoints_weights(folder: Path, stored_as: str, tolerance: float) -> None:
    path = write_gguf(folder, stored_as)
    assert path == folder.parent / f"random-tiny.{stored_as}.gguf"
    stored = GgufTensors(path, read_model_config(folder))
    for name, tensor in load_file(folder / "model.safetensors").items():
        difference = (stored.read(name) - tensor.float()).abs().max()
        assert difference <= tolerance * tensor.float().abs().max(), name


def test_w8a8_checkpoints_load_and_are_near_theirs(folder: Path) -> None:
    path = write_w8a8(folder)
    config = read_model_config(path)
    assert load_model(path, config, dtype="float32")[0].config.num_layers == SHAPE.num_layers
    plain, rounded = (load_file(of / "model.safetensors") for of in (folder, path))
    for name, tensor in rounded.items():
        if tensor.dtype is torch.int8:
            restored = tensor.float() * rounded[name + "_scale"].float()
            assert (restored - plain[name].float()).abs().max() < 0.02 * plain[name].float().abs().max()
    assert {name for name in rounded if not name.endswith("_scale")} == set(plain)
