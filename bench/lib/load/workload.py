"""What is asked: distinct prompts of a fixed length, made once and equal for every server."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Workload:
    """Greedy completions of exactly `output_len` tokens after `prompt_len` random tokens.

    Prompts are drawn per index, so no two share a prefix worth caching and equal indices give equal prompts.
    """

    prompt_len: int
    output_len: int
    vocab_size: int
    seed: int = 0

    def prompt(self, index: int) -> list[int]:
        draw = random.Random(f"{self.seed}:{index}")
        return draw.choices(range(self.vocab_size), k=self.prompt_len)

    def body(self, index: int, model: str, fields: Mapping[str, Any] = MappingProxyType({})) -> bytes:
        """The JSON body of a streaming request to /v1/completions, with these fields besides."""
        return orjson.dumps(
            {
                "model": model,
                "prompt": self.prompt(index),
                "max_tokens": self.output_len,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                **fields,
            }
        )


def fitted_workload(model_folder: Path, prompt_len: int, output_len: int, seed: int = 0) -> Workload:
    """A workload for the checkpoint in `model_folder`; lengths shrink in proportion if its context is too short."""
    config = json.loads((model_folder / "config.json").read_text(encoding="utf-8"))
    scale = min(1.0, config["max_position_embeddings"] / (prompt_len + output_len))
    return Workload(int(prompt_len * scale), int(output_len * scale), config["vocab_size"], seed)
