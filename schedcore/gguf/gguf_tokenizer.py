"""A GGUF file's vocabulary as the tokenizer.json and tokenizer_config.json that the same checkpoint has on the hub.

Two kinds: `gpt2` (pairs of byte-level pieces are merged in a given order; `tokenizer.ggml.pre` names how a text is cut
into words first) and `llama` (SentencePiece: the whole text is one word, the pair whose union scores best is merged,
characters outside the vocabulary become bytes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from schedcore.gguf.gguf_file import GgufError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # kinds of tokens
_SPACE = "\u2581"

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_REST}"
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_REST}"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_CASED_REST}"
)
_PATTERNS = {
    "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3, "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN, "gpt-4o": _O200K,
}  # fmt: skip
_WHOLE_WORDS_FIRST = ("llama-bpe", "llama3", "llama-v3", "tekken")  # a word in the vocabulary is one token
_DIGITS_APART = ("smollm", "starcoder", "refact", "command-r")
_GPT2 = ("gpt-2", "olmo", "phi-2")
PRE_TOKENIZERS = (*_GPT2, *_DIGITS_APART, *_PATTERNS)


def tokenizer_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Raises GgufError for a vocabulary that is missing or of another kind."""
    kind = settings.get("tokenizer.ggml.model")
    tokens = settings.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise GgufError("the file has no vocabulary (tokenizer.ggml.tokens)")
    kinds = settings.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if kind == "gpt2":
        parts = _byte_level(settings, tokens)
    elif kind == "llama":
        parts = _sentencepiece(settings, tokens, kinds)
    else:
        raise GgufError(f"a vocabulary of kind {kind!r} is not supported; gpt2 and llama are")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, kinds),
        **parts,
        "post_processor": _around(settings, tokens, is_added_if_unsaid=kind == "llama") or parts["post_processor"],
    }


def tokenizer_config_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    tokens = settings["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: settings.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    config: dict[str, Any] = {name: tokens[i] for name, i in ids.items() if isinstance(i, int) and 0 <= i < len(tokens)}
    template = settings.get("tokenizer.chat_template")
    return config if template is None else config | {"chat_template": template}


def _byte_level(settings: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    merges, pre = settings.get("tokenizer.ggml.merges"), settings.get("tokenizer.ggml.pre", "gpt-2")
    if not isinstance(merges, list):
        raise GgufError("the file has no merges (tokenizer.ggml.merges)")
    if pre not in PRE_TOKENIZERS:
        raise GgufError(f"pre-tokenizer {pre!r} is not supported; supported: {', '.join(PRE_TOKENIZERS)}")
    steps: list[dict[str, Any]] = []
    if pre in _DIGITS_APART:
        steps.append({"type": "Digits", "individual_digits": True})
    if pre in _PATTERNS:
        steps.append({"type": "Split", "pattern": {"Regex": _PATTERNS[pre]}, "behavior": "Isolated", "invert": False})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "normalizer": {"type": "NFC"} if _PATTERNS.get(pre) == _QWEN2 else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*steps, byte_level | {"use_regex": pre not in _PATTERNS}],
        },
        "post_processor": byte_level | {"trim_offsets": False, "use_regex": True},
        "decoder": byte_level | {"use_regex": True},
        "model": _merging(tokens, [list(merge.split(" ", 1)) for merge in merges])
        | {"ignore_merges": pre in _WHOLE_WORDS_FIRST},
    }


def _sentencepiece(settings: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    scores = settings.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise GgufError("the file has no score for each token (tokenizer.ggml.scores)")
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == _UNKNOWN), None)
    has_space = settings.get("tokenizer.ggml.add_space_prefix", True)
    before = [{"type": "Prepend", "prepend": _SPACE}] if has_space else []
    after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_space else []
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, spaces]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *after,
            ],
        },
        "model": _merging(tokens, _merges_by_score(tokens, scores, kinds))
        | {"unk_token": unknown, "fuse_unk": True, "byte_fallback": _BYTE in kinds},
    }


def _merges_by_score(tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]) -> list[list[str]]:
    """Every way to make a piece of two others, the best pieces first; of those of one piece, the first tokens first."""
    ids = {token: i for i, token in enumerate(tokens) if kinds[i] in (_NORMAL, _USER_DEFINED)}
    found = []
    for token, i in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                found.append((-scores[i], i, left, right))
    return [[tokens[left], tokens[right]] for _, _, left, right in sorted(found)]


def _merging(tokens: Sequence[str], merges: list[list[str]]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": merges,
    }


def _added_tokens(tokens: Sequence[str], kinds: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != _USER_DEFINED,
        }
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]


def _around(settings: Mapping[str, Any], tokens: Sequence[str], *, is_added_if_unsaid: bool) -> dict[str, Any] | None:
    """The special tokens around every text."""
    wanted = {"bos": settings.get("tokenizer.ggml.add_bos_token", is_added_if_unsaid)}
    wanted["eos"] = settings.get("tokenizer.ggml.add_eos_token", False)
    ids = {name: settings.get(f"tokenizer.ggml.{name}_token_id") for name, is_wanted in wanted.items() if is_wanted}
    known = {name: tokens[i] for name, i in ids.items() if isinstance(i, int) and 0 <= i < len(tokens)}
    if not known:
        return None
    special = {name: {"SpecialToken": {"id": token, "type_id": 0}} for name, token in known.items()}
    bos, eos = ([special[name]] if name in special else [] for name in ("bos", "eos"))
    text_a, text_b = ({"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B"))
    return {
        "type": "TemplateProcessing",
        "single": [*bos, text_a, *eos],
        "pair": [*bos, text_a, *eos, *bos, text_b, *eos],
        "special_tokens": {
            token: {"id": token, "ids": [ids[name]], "tokens": [token]} for name, token in known.items()
        },
    }
