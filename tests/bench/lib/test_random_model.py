"""Random checkpoints load like any other and behave like a trained model's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

from bench.lib.model.random_model import SHAPES, LlamaShape, byte_level_tokenizer, random_weights, write_checkpoint

TINY = LlamaShape(hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=64, vocab_size=400)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_checkpoint(folder, TINY)
    return folder


def test_transformers_loads_every_tensor_and_misses_none(checkpoint: Path) -> None:
    model, report = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert sum(p.numel() for p in model.parameters()) == TINY.num_parameters()


def test_logits_are_of_ordinary_size(checkpoint: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.arange(3, 67)[None]).logits
    assert 0.7 < float(logits.std()) < 1.4


def test_tokenizer_has_the_models_vocabulary_and_loses_no_text(checkpoint: Path) -> None:
    text = "the quick brown fox, déjà vu, 你好\n"
    for tokenizer in (
        Tokenizer.from_file(str(checkpoint / "tokenizer.json")),
        AutoTokenizer.from_pretrained(checkpoint),
    ):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(getattr(ids, "ids", ids)) == text
    assert Tokenizer.from_file(str(checkpoint / "tokenizer.json")).get_vocab_size() == TINY.vocab_size


def test_special_tokens_come_first(checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert (tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


def test_full_size_vocabulary_can_be_enumerated() -> None:
    assert byte_level_tokenizer(8192).get_vocab_size() == 8192


def test_weights_repeat_with_their_seed() -> None:
    first, second, other = (random_weights(TINY, seed)["lm_head.weight"] for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("name", "millions"), [("15m", 14.8), ("100m", 97.5), ("0.5b", 372.6)])
def test_shapes_have_the_size_they_are_named_for(name: str, millions: float) -> None:
    assert SHAPES[name].num_parameters() / 1e6 == pytest.approx(millions, abs=0.05)
