"""Settings of tokenizer.json as published checkpoints have them: none of them may change what a prompt becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from gateway.model.checkpoint import Checkpoint
from gateway.model.tokenize import Tokenizer

BOS, EOS, PAD = 0, 1, 2
WORDS = {"<s>": BOS, "</s>": EOS, "<pad>": PAD, "a": 3, "b": 4, "c": 5, "1": 6, "<unk>": 7}

PADDING: dict[str, Any] = {
    "none": None,
    "batch longest": {"strategy": "BatchLongest"},
    "fixed on the right": {"strategy": {"Fixed": 16}},
    "fixed on the left": {"strategy": {"Fixed": 16}, "direction": "Left"},
    "fixed to one": {"strategy": {"Fixed": 1}},
    "to a multiple": {"strategy": "BatchLongest", "pad_to_multiple_of": 8},
}
TRUNCATION: dict[str, Any] = {
    "none": None,
    "long": {"max_length": 2048},
    "to one token": {"max_length": 1},
    "to one token from the left": {"max_length": 1, "direction": "Left"},
    "to two tokens": {"max_length": 2, "strategy": "OnlyFirst"},
}
BOS_AND_EOS: dict[str, Any] = {
    "template": processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)]),
    "bert": processors.BertProcessing(("</s>", EOS), ("<s>", BOS)),
    "roberta": processors.RobertaProcessing(("</s>", EOS), ("<s>", BOS)),
    "sequence": processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", BOS), ("</s>", EOS)]),
        ]
    ),
}


def backend(words: dict[str, int] = WORDS) -> Backend:
    made = Backend(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.Fuse()
    made.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>", "<pad>")])
    return made


def load(folder: Path, made: Backend, **settings: Any) -> Tokenizer:
    content = json.loads(made.to_str())
    padding = {"direction": "Right", "pad_id": PAD, "pad_type_id": 0, "pad_token": "<pad>", "pad_to_multiple_of": None}
    truncation = {"direction": "Right", "strategy": "LongestFirst", "stride": 0}
    for name, defaults in (("padding", padding), ("truncation", truncation)):
        content[name] = None if settings.get(name) is None else defaults | settings[name]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "config.json").write_text("{}")
    return Tokenizer.load(Checkpoint.read(folder))


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("truncation", TRUNCATION)
@pytest.mark.parametrize("processor", BOS_AND_EOS)
async def test_special_tokens_survive_how_training_padded_and_cut(
    tmp_path: Path, processor: str, truncation: str, padding: str
) -> None:
    made = backend()
    made.post_processor = BOS_AND_EOS[processor]
    tokenizer = load(tmp_path, made, padding=PADDING[padding], truncation=TRUNCATION[truncation])
    assert await tokenizer.encode("a b c", add_special_tokens=True) == [BOS, 3, 4, 5, EOS]
    assert await tokenizer.encode("a b c", add_special_tokens=False) == [3, 4, 5]
    assert await tokenizer.encode_prefix("a b c ", add_special_tokens=True) == [BOS, 3]


async def test_bos_stays_in_front_where_the_vocabulary_has_no_latin_letter(tmp_path: Path) -> None:
    made = Backend(models.BPE({"<s>": BOS, "</s>": EOS, "<pad>": PAD, "東": 3, "京": 4}, []))  # drops what it lacks
    made.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>", "<pad>")])
    made.post_processor = BOS_AND_EOS["template"]
    tokenizer = load(tmp_path, made)
    assert await tokenizer.encode("東京", add_special_tokens=True) == [BOS, 3, 4, EOS]


async def test_bos_of_a_normaliser_that_writes_a_space_in_front(tmp_path: Path) -> None:
    made = backend({**WORDS, "▁a": 8, "▁b": 9})
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    made.post_processor = BOS_AND_EOS["template"]
    tokenizer = load(tmp_path, made, padding={"strategy": {"Fixed": 4}})
    assert await tokenizer.encode("a b", add_special_tokens=True) == [BOS, 8, 9, EOS]
