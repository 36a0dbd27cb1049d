"""What the gateway reads of a checkpoint's directory: small JSON files, once, at the start."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.model.checkpoint_error import CheckpointError
from gateway.model.generation_config import read_eos_token_ids, read_sampling
from schedcore.api.types import SamplingParams

__all__ = ["Checkpoint", "CheckpointError"]

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    directory: Path
    eos_token_ids: tuple[int, ...]
    sampling: SamplingParams  # defaults of requests that do not say otherwise
    special_tokens: dict[str, str]  # "bos_token" -> "<s>"
    tokenizer_config: dict[str, Any]
    chat_template: str | None
    vocab_size: int = 0  # of the embeddings, which may be more than the tokenizer's; 0: not said

    @classmethod
    def read(cls, directory: Path, chat_template: Path | None = None) -> Checkpoint:
        """`chat_template`: a file that replaces the checkpoint's own. Raises CheckpointError."""
        if not directory.is_dir():
            raise CheckpointError(f"There is no model directory {directory}.")
        if not (directory / "config.json").is_file():
            raise CheckpointError(f"{directory} is not a Hugging Face model directory: it has no config.json.")
        config = _read_json(directory / "config.json")
        generation_path = directory / "generation_config.json"
        generation = _read_json(generation_path)
        tokenizer = _read_json(directory / "tokenizer_config.json")
        return cls(
            directory=directory,
            eos_token_ids=read_eos_token_ids(generation, generation_path)
            or read_eos_token_ids(config, directory / "config.json"),
            sampling=read_sampling(generation, generation_path),
            special_tokens=_special_tokens(_read_json(directory / "special_tokens_map.json") | tokenizer),
            tokenizer_config=tokenizer,
            chat_template=_chat_template(directory, tokenizer, chat_template),
            vocab_size=_vocab_size(config),
        )


def _vocab_size(config: dict[str, Any]) -> int:
    """Models of several kinds of input have it a level down."""
    text = config.get("text_config")
    size = config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    return size if isinstance(size, int) else 0


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object.")
    return content


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens = {name: config.get(name) for name in SPECIAL_TOKEN_NAMES}
    contents = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
    return {name: content for name, content in contents.items() if isinstance(content, str)}


def _chat_template(directory: Path, tokenizer: dict[str, Any], override: Path | None) -> str | None:
    for path in (override, directory / "chat_template.jinja"):
        if path is not None and path.is_file():
            return _read_text(path)
    if override is not None:
        raise CheckpointError(f"There is no chat template {override}.")
    template = tokenizer.get("chat_template") or _read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(template, list):  # several, by name
        template = _named_default(template)
    if template is not None and not isinstance(template, str):
        raise CheckpointError(
            f"The chat_template in {directory} must be a string, or a list of objects with name and template."
        )
    return template


def _named_default(templates: list[Any]) -> Any:
    """False where an entry is no template: no string, and not None."""
    if not all(isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in templates):
        return False
    return {entry["name"]: entry.get("template") for entry in templates}.get("default")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
