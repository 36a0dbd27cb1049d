"""The vocabulary of a GGUF file makes the tokens that its checkpoint's own tokenizer makes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from fakes.gguf_files import vocabulary_of
from fakes.hostile_texts import HOSTILE_TEXTS
from fakes.tokenizer_kinds import CORPUS, TOKENIZER_KINDS
from schedcore.gguf.gguf_file import GgufError
from schedcore.gguf.gguf_tokenizer import tokenizer_config_json, tokenizer_json

KINDS = {
    "gpt2": {"pre": "gpt-2"},
    "llama3": {"pre": "llama-bpe"},
    "qwen": {"pre": "qwen2"},
    "o200k": {"pre": "gpt-4o"},
    "tekken": {"pre": "tekken"},
    "starcoder": {"pre": "smollm"},
    "llama2": {},
}
TEXTS = [
    *CORPUS,
    *(make(300) for make in HOSTILE_TEXTS.values()),
    "",
    " ",
    "  two  spaces ",
    "a<s>b</s>",
    "123456 7 8.90",
    "e\u0301 CamelCaseHTTPServer don't WON'T\r\n\r\n\tend",
]


def made(kind: str, **more: Any) -> Tokenizer:
    settings = vocabulary_of(TOKENIZER_KINDS[kind]()) | KINDS[kind] | {"add_bos_token": False} | more
    return Tokenizer.from_str(json.dumps(tokenizer_json({f"tokenizer.ggml.{k}": v for k, v in settings.items()})))


@pytest.mark.parametrize("kind", KINDS)
def test_texts_become_the_same_tokens_and_come_back(kind: str) -> None:
    ours, theirs = made(kind), TOKENIZER_KINDS[kind]()
    for text in TEXTS:
        expected = theirs.encode(text).ids
        assert ours.encode(text).ids == expected
        for skips in (True, False):
            assert ours.decode(expected, skip_special_tokens=skips) == theirs.decode(
                expected, skip_special_tokens=skips
            )


def test_special_tokens_come_around_a_text_where_the_file_says_so() -> None:
    plain = made("llama3")
    bos, eos = plain.token_to_id("<s>"), plain.token_to_id("<|im_end|>")
    around = made("llama3", add_bos_token=True, add_eos_token=True, bos_token_id=bos, eos_token_id=eos)
    assert around.encode("Hello").ids == [bos, *plain.encode("Hello").ids, eos]
    assert around.encode("Hello", add_special_tokens=False).ids == plain.encode("Hello").ids
    assert made("llama3", add_bos_token=True).encode("Hello").ids == plain.encode("Hello").ids  # it names none


def test_names_of_special_tokens_and_the_template() -> None:
    settings = {"tokenizer.ggml.tokens": ["a", "<e>"], "tokenizer.ggml.eos_token_id": 1, "tokenizer.chat_template": "T"}
    assert tokenizer_config_json(settings) == {"eos_token": "<e>", "chat_template": "T"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "no vocabulary"),
        ({"tokens": ["a"], "model": "gpt2"}, "no merges"),
        ({"tokens": ["a"], "model": "llama"}, "no score"),
        ({"tokens": ["a"], "model": "plamo2"}, "'plamo2' is not supported"),
    ],
)
def test_what_a_vocabulary_lacks_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(GgufError, match=words):
        tokenizer_json({f"tokenizer.ggml.{name}": value for name, value in settings.items()})
