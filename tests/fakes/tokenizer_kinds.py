"""Tokenizers of the kinds that checkpoints ship, trained on a page of text in many scripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from fakes.byte_tokenizer import byte_tokenizer
from gateway.model.tokenize import Tokenizer

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace("{1,3}", "")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>"]
CORPUS = [
    "Internationalization is what internationals internationalize, isn't it?\n\n  Yes!! We're, they'll, I'VE.\n",
    "def main():\n    return 12345 + 678\n\n\nif x == 'it''s':\n\tprint(\"hello  world\")\r\n",
    "        pass  # !!!???---===\n",
    "Größe, naïve, 東京は日本の首都です。東京は日本の首都です。 مرحبا بالعالم, здравствуй мир 🙂🙂👩‍💻\n",
    "北京是中华人民共和国的首都,人工智能,今天天气很好。北京是中华人民共和国的首都。\n",
    "ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอน नमस्ते दुनिया 안녕하세요 세계\n",
    "aGVsbG8gd29ybGQsIHRoaXMgaXMgYmFzZTY0IHRleHQgd2l0aG91dCBzcGFjZXM=\n",
] * 5


def _byte_level(
    pattern: str | None = None, *, before: tuple[Any, ...] = (), space: bool = False, **model: Any
) -> Backend:
    levels = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=pattern is None)
    splits = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), behavior="isolated")]
    backend = Backend(models.BPE(**model))
    parts = [*before, *splits, levels]
    backend.pre_tokenizer = pre_tokenizers.Sequence(parts) if len(parts) > 1 else levels
    backend.decoder = decoders.ByteLevel()
    return _trained(backend, trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **_SMALL))


_SMALL = {"vocab_size": 700, "show_progress": False, "special_tokens": ["<unk>"]}


def _trained(backend: Backend, trainer: Any) -> Backend:
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return backend


def _normalized(backend: Backend, normalizer: Any) -> Backend:
    backend.normalizer = normalizer
    return backend


def _metaspace() -> Backend:
    backend = Backend(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return _trained(backend, trainers.BpeTrainer(**_SMALL))


def _llama2() -> Backend:
    """The whole text is one word; characters outside the vocabulary are bytes."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = _metaspace()
    vocab = {token: i for token, i in trained.get_vocab(with_added_tokens=False).items() if "�" not in token}
    rare = {character for character in "日мिดह🙂{}" if character in vocab}
    vocab = {token: i for token, i in vocab.items() if rare.isdisjoint(token)}
    vocab = {token: i for i, token in enumerate([*bytes_, *sorted(vocab, key=vocab.__getitem__)])}
    merges = [tuple(merge) for merge in _merges(trained) if {*merge, "".join(merge)} <= set(vocab)]
    backend = Backend(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return backend


def _merges(backend: Backend) -> list[list[str]]:
    return [m if isinstance(m, list) else m.split(" ") for m in json.loads(backend.to_str())["model"]["merges"]]


def _unigram() -> Backend:
    backend = Backend(models.Unigram())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    backend.normalizer = normalizers.NFKC()
    return _trained(backend, trainers.UnigramTrainer(unk_token="<unk>", **_SMALL))


def _word_piece() -> Backend:
    backend = Backend(models.WordPiece(unk_token="<unk>"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return _trained(backend, trainers.WordPieceTrainer(**_SMALL))


def _with_odd_added_tokens() -> Backend:
    backend = _byte_level()
    odd = [AddedToken("<mask>", lstrip=True, special=True), AddedToken("word", single_word=True, special=True)]
    backend.add_special_tokens([*odd, AddedToken("<s><s>", special=True)])
    backend.add_tokens([AddedToken("  "), AddedToken("    "), AddedToken("<a>", rstrip=True), AddedToken("<a>b")])
    return backend


TOKENIZER_KINDS: dict[str, Callable[[], Backend]] = {
    "bytes": byte_tokenizer,
    "gpt2": _byte_level,
    "gpt2 with a space before": lambda: _byte_level(space=True),
    "llama3": lambda: _byte_level(LLAMA3, ignore_merges=True),
    "qwen": lambda: _normalized(_byte_level(QWEN), normalizers.NFC()),
    "o200k": lambda: _byte_level(O200K),
    "tekken": lambda: _byte_level(TEKKEN, ignore_merges=True),
    "starcoder": lambda: _byte_level(before=(pre_tokenizers.Digits(individual_digits=True),)),
    "unknown pattern": lambda: _byte_level(r"\p{N}+|[A-Za-z]+|[^A-Za-z\p{N}]+"),
    "metaspace": _metaspace,
    "llama2": _llama2,
    "unigram": _unigram,
    "word pieces": _word_piece,
    "odd added tokens": _with_odd_added_tokens,
}


@cache
def tokenizer_of_kind(name: str) -> Tokenizer:
    return Tokenizer(TOKENIZER_KINDS[name]())
