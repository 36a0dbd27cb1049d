"""What more text can change in a text that is still being written: how a tokenizer's parts see its end.

A tokenizer looks for added tokens, normalizes what is between them, splits that into words and makes tokens of each.
Each part is known by its kind; of kinds that are not, only what stands before the last white space is relied upon.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

# The alternatives that the patterns of byte-level tokenizers (GPT-2, GPT-4 and o200k, with them Llama 3, Qwen, Mistral)
# are made of, by what more text changes about the last words.
_CONTRACTIONS = frozenset(
    {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)"}
)
_WORDS = frozenset(
    {
        *(r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?+\p{L}+"),
        *(r"\p{N}", r"\p{N}+", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]++[\r\n]*"),
        *(r"\s*[\r\n]+", r"\s*[\r\n]", r"\s+(?!\S)", r"\s+", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"),
    }
)
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_BY_CASE = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_WORDS_BY_CASE = frozenset({*_BY_CASE, *(part + _ENDING for part in _BY_CASE)})
_SPLIT_BY_CHARACTER = frozenset(
    {"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Punctuation", "Digits", "Metaspace"}
)
_STEADY_NORMALIZERS = frozenset({"Prepend", "Lowercase", "ByteLevel"})
_COMPOSING_NORMALIZERS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "StripAccents", "BertNormalizer"})


@dataclass(frozen=True, slots=True)
class Words:
    """How a text falls into words."""

    is_known: bool = True  # else nothing is said about the words of an unfinished text
    has_patterns: bool = False  # white space at the end may fall apart; contractions
    has_case: bool = False  # a small letter may join the last word with the one before

    @classmethod
    def of(cls, backend: Backend) -> Words:
        kinds = _parts(backend.pre_tokenizer, "pretokenizers")
        parts = [_words(kind) for kind in kinds]
        return cls(
            all(part.is_known for part in parts),
            any(part.has_patterns for part in parts),
            any(part.has_case for part in parts),
        )

    def num_unsteady(self, last: str, before_last: str) -> int:
        """How many of the last words more text may split in another way; the last one may always grow.

        REQUIRES: `last` is more than white space.
        """
        if not self.has_patterns:
            return 0
        if any(mark in last[-3:] or mark in (before_last + last)[-3:] for mark in "'’"):
            return 3
        return 2 if self.has_case and _is_letter(before_last[-1:]) and _is_letter(last[0]) else 0


class Ends:
    """Where a text that may go on has to be cut so that nothing behind changes what is before."""

    def __init__(self, backend: Backend) -> None:
        added = backend.get_added_tokens_decoder().values()
        kinds = _parts(backend.normalizer, "normalizers")
        self.is_known = all(_is_steady(kind) or kind["type"] in _COMPOSING_NORMALIZERS for kind in kinds)
        self._composes = any(kind["type"] in _COMPOSING_NORMALIZERS for kind in kinds)
        self._is_local = all(kind["type"] in {"NFC", "NFD", "Lowercase"} for kind in kinds)
        contents = {token.content for token in added}
        self._beginnings = frozenset(content[:i] for content in contents for i in range(1, len(content)))
        self._added = tuple(contents)
        self.longest = max(map(len, contents), default=0)
        self._strips_space = any(token.lstrip or token.rstrip for token in added)
        self._normalized = max((len(token.content) for token in added if token.normalized and kinds), default=0)

    def may_follow_cuts(self) -> bool:
        """Whether normalizing and looking for added tokens goes on at a space or full stop as if a text began there."""
        return (
            self._is_local
            and not self._strips_space
            and not any(mark in t for t in self._added for mark in " ,.，。、")
        )

    def before_added_token(self, text: str) -> str:
        """Without what may be the beginning of an added token."""
        end = max(0, len(text) - max(0, self._normalized - 1))
        end = min(end, self._before_added_token(text))
        return text[:end].rstrip() if self._strips_space else text[:end]

    def before_marks(self, text: str) -> str:
        """Without the last character, which marks behind it may change."""
        return self.before_added_token(text[: self._before_composition(text, len(text))]) if self._composes else text

    def seems_walled(self, text: str) -> bool:
        return text.endswith(self._added)

    def _before_added_token(self, text: str) -> int:
        """Where an added token may have begun."""
        for start in range(max(0, len(text) - self.longest + 1), len(text)):
            if text[start:] in self._beginnings:
                return start
        return len(text)

    def _before_composition(self, text: str, end: int) -> int:
        """A mark behind a character may become one with it, and marks change places among themselves."""
        if end == 0:
            return end
        end -= 1
        while end > 0 and _may_join(text[end]):
            end -= 1
        return end


def _is_letter(character: str) -> bool:
    return bool(character) and unicodedata.category(character)[0] in "LM"


def _may_join(character: str) -> bool:
    return unicodedata.category(character)[0] == "M" or "\u1160" <= character <= "\u11ff"  # Hangul vowels and finals


def _words(kind: dict[str, Any]) -> Words:
    if kind["type"] == "ByteLevel":
        return Words(has_patterns=kind.get("use_regex", True))
    if kind["type"] in _SPLIT_BY_CHARACTER:
        return Words()
    if kind["type"] == "Split" and "Regex" in kind["pattern"] and kind["behavior"] == "Isolated" and not kind["invert"]:
        pieces = set(alternatives(kind["pattern"]["Regex"]))
        if pieces <= _CONTRACTIONS | _WORDS | _WORDS_BY_CASE:
            return Words(has_patterns=True, has_case=not pieces.isdisjoint(_WORDS_BY_CASE))
    return Words(is_known=False)


def alternatives(pattern: str) -> list[str]:
    """Of a regular expression, at its top level."""
    found, depth, start = [], 0, 0
    for i, character in enumerate(pattern):
        if i and pattern[i - 1] == "\\":
            continue
        depth += (character in "([") - (character in ")]")
        if character == "|" and depth == 0:
            found.append(pattern[start:i])
            start = i + 1
    return [*found, pattern[start:]]


def _is_steady(kind: dict[str, Any]) -> bool:
    if kind["type"] == "Replace":
        return len(kind["pattern"].get("String", "??")) == 1
    return kind["type"] in _STEADY_NORMALIZERS


def _parts(part: Any, several: str) -> list[dict[str, Any]]:
    """The kinds that a part of a tokenizer is made of, as tokenizer.json spells them."""
    if part is None:
        return []
    state: dict[str, Any] = json.loads(part.__getstate__())
    return _flat(state, several)


def _flat(state: dict[str, Any], several: str) -> list[dict[str, Any]]:
    if state["type"] == "Sequence":
        return [kind for inner in state[several] for kind in _flat(inner, several)]
    return [state]
