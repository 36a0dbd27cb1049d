"""The first tokens of an unfinished text: no continuation changes them, and they are most of it in every script."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes.growth import MAX_RATIO, growth
from fakes.hostile_texts import HOSTILE_TEXTS
from fakes.tokenizer_kinds import CORPUS, SPECIAL, TOKENIZER_KINDS, tokenizer_of_kind

SCRIPTS = [
    *(" ", "  ", "\n", "\r\n", "\t", "'", "’", "'s", "'r", "'l", "'ll", "1", "234", "!", "...", "=", "/"),
    *("\u0301", "\u0323", "a", "B", "word", "Wo", "<", "<|im_", "<s>", "<|im_end|>", "<mask>", "<a>", "b", "e", "s"),
    *("n't", "\u00a0", "\u3000", "東京は", "日本の首都", "人工智能", "，", "。", "ภาษาไทย", "ที่มี", "नमस्ते", "안녕"),
    *("\u1100\u1161", "\u11a8", "\U0001f469\u200d\U0001f4bb", "🙂", "Größe", "مرحبا", "здравствуй", "aGVsbG8gd29y"),
    *("\u0130", "ſ", "ﬁ", "▁", "Ab", "ABC", "日本A", "\u2167", "²", "{", "\\"),
]
unfinished = st.lists(st.sampled_from([*SCRIPTS, *CORPUS[:6], *SPECIAL]) | st.characters(codec="utf-8"), max_size=14)


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
@given(parts=unfinished)
@example(parts=["日本A", "B", "'", "re"])
@example(parts=["<s>", "<s>"])
@example(parts=["it", "'r", "e", " ", "hello'", "s"])
@example(parts=["e", "\u0323", "\u0301", "e", "\u1100", "\u1161", "\u11a8"])
@settings(max_examples=60, deadline=None)
def test_no_continuation_changes_the_first_tokens(kind: str, parts: list[str]) -> None:
    tokenizer = tokenizer_of_kind(kind)
    text = "".join(parts)
    whole = asyncio.run(tokenizer.encode(text, add_special_tokens=True))
    step = max(1, len(text) // 30)
    for end in [*range(0, len(text), step), *range(max(0, len(text) - 12), len(text) + 1)]:
        begun = asyncio.run(tokenizer.encode_prefix(text[:end], add_special_tokens=True))
        assert begun == whole[: len(begun)], text[:end]


GROWING_KINDS = ["bytes", "gpt2", "llama3", "qwen", "o200k", "tekken", "starcoder", "metaspace", "llama2"]
UNBROKEN = {
    "Chinese": "今天北京天气很好人工智能是北京的首都今天人民共和国很好中华天气人工智能",
    "Japanese": "首都は東京です日本は東京の首都です日本の東京は首都です",
    "Thai": "เสียงของภาษาไทยมีระดับแน่นอนคำที่เป็นภาษาของไทยเสียงแน่นอนระดับคำ",
    "base64": "aGVsbG8gd29ybGQsIHRoaXMgaXMgYmFzZTY0IHRleHQgd2l0aG91dCBzcGFjZXM" * 300,
}


@pytest.mark.parametrize("kind", GROWING_KINDS)
@pytest.mark.parametrize("script", UNBROKEN)
def test_a_draft_without_spaces_keeps_most_of_its_tokens(kind: str, script: str) -> None:
    tokenizer = tokenizer_of_kind(kind)
    begun = asyncio.run(tokenizer.encode_prefix(UNBROKEN[script], add_special_tokens=False))
    whole = asyncio.run(tokenizer.encode(UNBROKEN[script], add_special_tokens=False))
    assert begun == whole[: len(begun)]
    assert len(begun) > 0.6 * len(whole)


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_the_first_tokens_are_found_in_linear_time(kind: str, text: str) -> None:
    tokenizer = tokenizer_of_kind(kind)
    ratio = growth(lambda text: tokenizer._encode_prefix(text, False), HOSTILE_TEXTS[text], 4000)
    assert ratio < MAX_RATIO
