"""Checkpoints on disk: dtypes, shards, and what is said of those that do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes.tiny_checkpoints import write_checkpoint
from schedcore.api.config import QUANTIZATIONS
from worker.base.errors import CheckpointError, UnsupportedModelError
from worker.batch.paged_pool import PagedPool, StepBatch
from worker.models.decoder import DecoderModel
from worker.models.loader import load_model
from worker.models.model_config import read_model_config

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


def load(folder: Path, dtype: str = "auto", quantization: str | None = None) -> tuple[DecoderModel, torch.dtype]:
    return load_model(folder, read_model_config(folder), dtype=dtype, quantization=quantization)


def rewrite(folder: Path, change: Callable[[Tensors], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def set_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def logits_of(model: DecoderModel, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocab_size] of one sequence in a pool of its own."""
    config, n = model.config, len(tokens)
    layers = config.num_layers
    table = torch.arange(2 * layers, dtype=torch.int32).view(1, layers, 2, 1)
    pool = PagedPool(torch.zeros(2 * layers, 1, n, config.kv_size), table, config.num_kv_heads, config.head_dim)
    batch = StepBatch(
        token_ids=torch.tensor(tokens, dtype=torch.int32),
        positions=torch.arange(n, dtype=torch.int32),
        token_row=torch.zeros(n, dtype=torch.int32),
        query_start=torch.tensor([0, n], dtype=torch.int32),
        seq_lens=torch.tensor([n], dtype=torch.int32),
        rows=torch.zeros(1, dtype=torch.int32),
        sample_tokens=torch.arange(n),
        max_query_len=n,
        max_seq_len=n,
    )
    with torch.inference_mode():
        return model.compute_logits(model.forward(batch, pool))


PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def test_logits_equal_those_of_transformers(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits_of(load(folder)[0], PROMPT), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_reduced_precision_stays_near_float32(folder: Path, dtype: str) -> None:
    exact, _ = load(folder)
    reduced, loaded_dtype = load(folder, dtype)
    assert loaded_dtype == getattr(torch, dtype)
    expected, actual = logits_of(exact, PROMPT), logits_of(reduced, PROMPT)
    assert actual.dtype == torch.float32
    difference = (actual - expected).norm() / expected.norm()
    assert 0 < difference < 0.1


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_fewer_bits_stay_near_float32(folder: Path, quantization: str) -> None:
    exact, reduced = load(folder)[0], load(folder, quantization=quantization)[0]
    expected, actual = logits_of(exact, PROMPT), logits_of(reduced, PROMPT)
    difference = (actual - expected).norm() / expected.norm()
    assert 0 < difference < (0.8 if quantization == "int4" else 0.1)  # its weights are large


def test_auto_takes_the_dtype_that_the_checkpoint_states(folder: Path) -> None:
    set_config(folder, dtype="bfloat16")
    assert load(folder)[1] == torch.bfloat16


def test_auto_without_a_statement_takes_the_dtype_of_the_tensors(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({name: t.half() for name, t in tensors.items()}))
    set_config(folder, dtype=None, torch_dtype=None)
    assert load(folder)[1] == torch.float16


def test_an_unknown_dtype_is_refused(folder: Path) -> None:
    set_config(folder, dtype="float8_e4m3fn")
    with pytest.raises(UnsupportedModelError, match=r"float8_e4m3fn.*float32, bfloat16, float16"):
        load(folder)


def test_a_sharded_checkpoint_is_the_same_model(folder: Path, tmp_path: Path) -> None:
    sharded = write_checkpoint(tmp_path / "sharded", max_shard_size="100KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 1
    assert torch.equal(logits_of(load(sharded)[0], PROMPT), logits_of(load(folder)[0], PROMPT))


def test_names_without_the_model_prefix_are_found(folder: Path) -> None:
    expected = logits_of(load(folder)[0], PROMPT)

    def strip(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    rewrite(folder, strip)
    assert torch.equal(logits_of(load(folder)[0], PROMPT), expected)


def test_buffers_of_old_checkpoints_are_ignored(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert load(folder)[1] == torch.float32


def test_progress_counts_every_tensor(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    load_model(folder, read_model_config(folder), progress=lambda done, total: seen.append((done, total)))
    total = len(load_file(folder / "model.safetensors"))
    assert seen == [(done, total) for done in range(1, total + 1)]


def test_missing_unexpected_and_misshapen_tensors_are_named_together(folder: Path) -> None:
    def damage(tensors: Tensors) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.1.mlp.side_proj.weight"] = torch.ones(2)
        tensors["model.norm.weight"] = torch.ones(63)

    rewrite(folder, damage)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    message = str(caught.value)
    assert "missing: model.layers.1.mlp.up_proj.weight" in message
    assert "unexpected: model.layers.1.mlp.side_proj.weight" in message
    assert "model.norm.weight is [63] instead of [64]" in message


def test_many_names_are_cut_short(folder: Path) -> None:
    set_config(folder, num_hidden_layers=30)
    with pytest.raises(CheckpointError, match=r"missing: .*and 2\d\d more"):
        load(folder)


def test_integer_weights_are_refused(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"].to(torch.int8)}))
    with pytest.raises(CheckpointError, match=r"lm_head.weight has dtype torch.int8"):
        load(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "sharded", max_shard_size="100KB")
    lost = sorted(folder.glob("model-*.safetensors"))[-1]
    lost.unlink()
    with pytest.raises(CheckpointError, match=lost.name):
        load(folder)


def test_a_truncated_file_is_reported(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(folder)


def test_a_damaged_index_is_reported(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(CheckpointError, match="damaged"):
        load(folder)


def test_pickled_weights_are_refused_with_the_way_out(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="convert the checkpoint to safetensors"):
        load(folder)
