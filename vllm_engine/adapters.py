"""LoRA adapters: which, where, and what vLLM's engine has to be told of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG_FILE = "adapter_config.json"  # of PEFT's format
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for


def adapter_arguments(adapters: Mapping[str, str]) -> dict[str, Any]:
    """Of vLLM's EngineArgs: all of them at once in a step. adapters: folders by name. Raises ValueError."""
    if not adapters:
        return {}
    rank = max(_rank(name, Path(folder)) for name, folder in adapters.items())
    room = next((r for r in RANKS if r >= rank), None)
    if room is None:
        raise ValueError(f"an adapter has rank {rank}; vLLM takes {RANKS[-1]} at most")
    return {"enable_lora": True, "max_loras": len(adapters), "max_lora_rank": room}


def _rank(name: str, folder: Path) -> int:
    file = folder / CONFIG_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"the adapter {name} cannot be read: {file}: {error}") from None
    is_lora = isinstance(content, dict) and content.get("peft_type") == "LORA"
    rank = content.get("r") if is_lora else None
    if not isinstance(rank, int) or rank < 1:
        raise ValueError(f"the adapter {name} is no LoRA: {file} has neither its type nor its rank")
    return rank
