"""Encoding as Hugging Face's tokenizers do it, special tokens included."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from gateway.model.checkpoint import Checkpoint, CheckpointError
from gateway.model.text_pieces import encoding_here
from gateway.model.tokenize import MAX_INLINE_CHARACTERS, Tokenizer
from gateway.model.work_pool import Work

TEXTS = ["Hello world", "", "  two  spaces", "naïve 東京", "a<s>b</s>c"]


def bpe() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(["hello world " * 10], trainer)
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>")])
    return backend


def with_bos(backend: Backend) -> Backend:
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return backend


def write(folder: Path, backend: Backend, **config: Any) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    return configure(folder, **config)


def configure(folder: Path, **config: Any) -> Path:
    config = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


async def check_equal_to_hugging_face(folder: Path) -> None:
    ours = Tokenizer.load(Checkpoint.read(folder))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert await ours.encode(text, add_special_tokens=True) == theirs.encode(text)
        assert await ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    ids = theirs.encode("Hello world")
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("config", [{}, {"add_bos_token": True}, {"add_bos_token": False}, {"add_eos_token": True}])
@pytest.mark.parametrize("has_bos", [True, False])
async def test_special_tokens_are_added_as_hugging_face_adds_them(
    tmp_path: Path, has_bos: bool, config: dict[str, bool]
) -> None:
    await check_equal_to_hugging_face(write(tmp_path, with_bos(bpe()) if has_bos else bpe(), **config))


async def test_vocab_and_merges_without_tokenizer_json(tmp_path: Path) -> None:
    """As OPT checkpoints have them: GPT-2's files, and a bos token that the configuration asks for."""
    bpe().model.save(str(tmp_path))
    vocab = json.loads((tmp_path / "vocab.json").read_text())
    vocab |= {"<s>": len(vocab), "</s>": len(vocab) + 1}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    configure(tmp_path, tokenizer_class="GPT2Tokenizer", unk_token="</s>", add_bos_token=True)
    await check_equal_to_hugging_face(tmp_path)


async def test_special_tokens_that_only_the_configuration_names(tmp_path: Path) -> None:
    folder = write(tmp_path, bpe(), pad_token="hello")
    ours = Tokenizer.load(Checkpoint.read(folder))
    assert ours.token_id("hello") in ours.special_ids


async def test_long_text_is_encoded_off_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.load(Checkpoint.read(write(tmp_path, bpe())))
    threads: list[str] = []
    encode = tokenizer._encode

    def watched(texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        threads.append(threading.current_thread().name)
        return encode(texts, add_special_tokens)

    def watched_long(*arguments: Any) -> Work[list[int] | None]:
        threads.append(threading.current_thread().name)
        return (yield from encoding_here(*arguments))

    monkeypatch.setattr(tokenizer, "_encode", watched)
    monkeypatch.setattr("gateway.model.tokenize.encoding_here", watched_long)
    long = "hello " * MAX_INLINE_CHARACTERS
    short_ids, long_ids = await asyncio.gather(tokenizer.encode("hello", True), tokenizer.encode(long, True))
    tokenizer.close()
    assert threads[0] == threading.main_thread().name
    assert threads[1].startswith("tokenize")
    assert tokenizer.decode(short_ids) == "hello"
    assert tokenizer.decode(long_ids) == long


def test_directory_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither a tokenizer\.json nor a vocab\.json"):
        Tokenizer.load(Checkpoint.read(configure(tmp_path)))


def test_broken_tokenizer_is_named(tmp_path: Path) -> None:
    (configure(tmp_path) / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        Tokenizer.load(Checkpoint.read(tmp_path))
