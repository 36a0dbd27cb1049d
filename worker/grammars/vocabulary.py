"""The checkpoint's vocabulary as llguidance wants it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class VocabularyError(Exception):
    """The checkpoint's tokenizer cannot follow a grammar."""


def has_vocabulary(folder: Path) -> bool:
    return (folder / "tokenizer.json").is_file()


def load_vocabulary(folder: Path, vocab_size: int) -> LLTokenizer:
    """Takes a second or two for 150,000 tokens. Raises VocabularyError.

    vocab_size: of the logits; ids that the tokenizer does not know are never allowed.
    """
    from llguidance import LLTokenizer

    if not has_vocabulary(folder):
        raise VocabularyError("the checkpoint has no tokenizer.json")
    try:
        content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        content["truncation"] = content["padding"] = None
        num_tokens = max(vocab_size, _num_tokens(content))
        return LLTokenizer(json.dumps(content), n_vocab=num_tokens, eos_token=_end(folder, content))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VocabularyError(f"its tokenizer cannot be used: {error}") from error


def _num_tokens(tokenizer: dict[str, Any]) -> int:
    vocab: dict[str, int] | list[Any] = tokenizer["model"]["vocab"]
    ids: list[int] = list(vocab.values() if isinstance(vocab, dict) else range(len(vocab)))
    added: list[int] = [token["id"] for token in tokenizer.get("added_tokens") or ()]
    return 1 + max(ids + added)


def _end(folder: Path, tokenizer: dict[str, Any]) -> int | None:
    """The token that ends a text, for llguidance: no grammar lets it through as text. None: it may guess."""
    special = {token["id"] for token in tokenizer.get("added_tokens") or () if token.get("special")}
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        named = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
        for token_id in named if isinstance(named, list) else [named]:
            if isinstance(token_id, int) and (token_id in special or not special):
                return token_id
    return min(special) if special else None
