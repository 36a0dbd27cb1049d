"""Incremental text against the tokenizers library's own decoding of everything at once."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from fakes.byte_tokenizer import byte_tokenizer
from gateway.model.detokenize import PieceDetokenizer, WindowDetokenizer
from gateway.model.tokenize import Tokenizer as GatewayTokenizer

TEXTS = ["hello world", "the cat sat on the mat", "naïve café – 東京 🎉", "  two  spaces ", "x = y + 1\n"] * 4
SPECIAL = AddedToken("<|end|>", special=True)
ADDED = AddedToken("<tool call>", special=False)  # holds a space, which is no character of byte-level tokens


@functools.cache
def byte_level_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([SPECIAL])
    tokenizer.add_tokens([ADDED])
    return tokenizer


@functools.cache
def byte_fallback_bpe(strips: bool = True) -> Tokenizer:
    """As Llama 2 and Mistral (with the strip) and Gemma (without) have it."""
    characters = {"▁", *"".join(TEXTS).replace(" ", "▁").replace("東", "").replace("🎉", "")}
    words = ["▁h", "▁he", "▁t", "▁th", "▁the", "at", "▁c", "▁▁"]
    tokens = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *sorted(characters - {"\n"}), *words]
    merges = [("▁", "h"), ("▁h", "e"), ("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("a", "t"), ("▁", "c"), ("▁", "▁")]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if strips else []
    chain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(chain)
    tokenizer.add_special_tokens([SPECIAL])
    return tokenizer


@functools.cache
def metaspace_unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=90, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([SPECIAL])
    return tokenizer


@functools.cache
def word_level() -> Tokenizer:
    """No table of pieces can say what this decoder does: it puts spaces between tokens."""
    words = ["<unk>", *sorted({word for text in TEXTS for word in text.split()})]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([SPECIAL])
    return tokenizer


KINDS = {
    "bytes": byte_tokenizer,
    "byte-level": byte_level_bpe,
    "byte-fallback": byte_fallback_bpe,
    "byte-fallback without strip": lambda: byte_fallback_bpe(strips=False),
    "metaspace": metaspace_unigram,
    "word-level": word_level,
}


@functools.cache
def wrapped(backend: Tokenizer) -> GatewayTokenizer:
    return GatewayTokenizer(backend)


def incrementally(
    backend: Tokenizer, ids: Sequence[int], cuts: Sequence[int] = (), prompt: Sequence[int] = (), skip: bool = True
) -> list[str]:
    detokenizer = wrapped(backend).detokenizer(prompt, skip)
    places = sorted({0, len(ids), *(place % (len(ids) + 1) for place in cuts)})
    pieces = [detokenizer.add(ids[a:b]) for a, b in itertools.pairwise(places)]
    return [*pieces, detokenizer.flush()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(
    text=st.one_of(st.text(max_size=40), st.sampled_from(TEXTS), st.text("hecatl 東🎉é\n", max_size=40)),
    cuts=st.lists(st.integers(0, 80), max_size=80),
)
def test_pieces_of_encoded_text_add_up_to_full_decoding(kind: str, text: str, cuts: list[int]) -> None:
    backend = KINDS[kind]()
    ids = backend.encode(text, add_special_tokens=False).ids
    assert "".join(incrementally(backend, ids, cuts)) == backend.decode(ids)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", ["bytes", "byte-level"])
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_tokens_of_a_byte_level_vocabulary_add_up_too(kind: str, skip: bool, data: st.DataObject) -> None:
    """Models do sample invalid UTF-8."""
    backend = KINDS[kind]()
    ids = data.draw(st.lists(st.integers(0, backend.get_vocab_size() - 1), max_size=30))
    cuts = data.draw(st.lists(st.integers(0, 30), max_size=30))
    assert "".join(incrementally(backend, ids, cuts, skip=skip)) == backend.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", KINDS)
@given(st.text("aé東🎉 h", min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_a_character_is_never_split(kind: str, text: str) -> None:
    backend = KINDS[kind]()
    ids = backend.encode(text, add_special_tokens=False).ids
    whole = backend.decode(ids)
    shown = ""
    for piece in incrementally(backend, ids, range(len(ids))):
        shown += piece
        assert whole.startswith(shown)


@pytest.mark.parametrize("kind", KINDS)
def test_text_after_a_prompt_continues_it(kind: str) -> None:
    backend = KINDS[kind]()
    ids = backend.encode("hello the cat", add_special_tokens=False).ids
    for i in range(1, len(ids)):
        after = "".join(incrementally(backend, ids[i:], prompt=ids[:i]))
        assert backend.decode(ids[:i]) + after == backend.decode(ids)


def test_first_space_goes_after_special_tokens_only() -> None:
    backend = byte_fallback_bpe()
    end = backend.token_to_id("<|end|>")
    ids = backend.encode("hello", add_special_tokens=False).ids
    assert "".join(incrementally(backend, ids, prompt=[end])) == "hello"
    assert "".join(incrementally(backend, ids, prompt=ids)) == " hello"


def test_common_decoders_need_no_window() -> None:
    fast = {
        kind: isinstance(GatewayTokenizer(make()).detokenizer([], True), PieceDetokenizer)
        for kind, make in KINDS.items()
    }
    assert fast == {kind: kind != "word-level" for kind in KINDS}


def test_window_gives_up_waiting_for_a_character() -> None:
    detokenizer = WindowDetokenizer(byte_tokenizer(), [], True)
    shown = "".join(detokenizer.add([0xE6]) for _ in range(20)) + detokenizer.flush()
    assert set(shown) == {"\ufffd"}
