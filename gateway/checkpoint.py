"""What the gateway reads of a checkpoint's directory: small JSON files, once, at the start."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schedcore.types import SamplingParams

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class CheckpointError(Exception):
    """The directory does not hold what a gateway needs; one line that says what is missing or wrong."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    directory: Path
    eos_token_ids: tuple[int, ...]
    sampling: SamplingParams  # defaults of requests that do not say otherwise
    special_tokens: dict[str, str]  # "bos_token" -> "<s>"
    tokenizer_config: dict[str, Any]
    chat_template: str | None

    @classmethod
    def read(cls, directory: Path, chat_template: Path | None = None) -> Checkpoint:
        """`chat_template`: a file that replaces the checkpoint's own. Raises CheckpointError."""
        if not directory.is_dir():
            raise CheckpointError(f"There is no model directory {directory}.")
        if not (directory / "config.json").is_file():
            raise CheckpointError(f"{directory} is not a Hugging Face model directory: it has no config.json.")
        config = _read_json(directory / "config.json")
        generation = _read_json(directory / "generation_config.json")
        tokenizer = _read_json(directory / "tokenizer_config.json")
        return cls(
            directory=directory,
            eos_token_ids=_eos_token_ids(generation) or _eos_token_ids(config),
            sampling=_sampling(generation),
            special_tokens=_special_tokens(_read_json(directory / "special_tokens_map.json") | tokenizer),
            tokenizer_config=tokenizer,
            chat_template=_chat_template(directory, tokenizer, chat_template),
        )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object.")
    return content


def _eos_token_ids(config: dict[str, Any]) -> tuple[int, ...]:
    ids = config.get("eos_token_id")
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (ids,)


def _sampling(generation: dict[str, Any]) -> SamplingParams:
    """Model authors state here how their model is meant to be sampled; vLLM takes the same fields."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return SamplingParams(**{name: generation[name] for name in names if generation.get(name) is not None})


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens = {name: config.get(name) for name in SPECIAL_TOKEN_NAMES}
    contents = {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}
    return {name: content for name, content in contents.items() if isinstance(content, str)}


def _chat_template(directory: Path, tokenizer: dict[str, Any], override: Path | None) -> str | None:
    for path in (override, directory / "chat_template.jinja"):
        if path is not None and path.is_file():
            return path.read_text(encoding="utf-8")
    if override is not None:
        raise CheckpointError(f"There is no chat template {override}.")
    template = tokenizer.get("chat_template") or _read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template
