"""How many bytes of weights a decode step reads, and how many weights are multiplied with a token."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from pathlib import Path

EMBEDDINGS = ("embed_tokens.weight", "embed_positions.weight")  # of which a step reads a row per token


def streamed_weight_bytes(folder: Path) -> int:
    """Of a checkpoint in safetensors format, as stored: all tensors but the embeddings, unless they are tied to the
    output.
    """
    tensors = _tensors(folder)
    is_tied = _is_tied(tensors)
    return sum(size for name, (size, _) in tensors.items() if is_tied or not name.endswith(EMBEDDINGS))


def multiplied_weights(folder: Path) -> tuple[int, int]:
    """Of the body, with every token, and of the head, with those that are drawn."""
    tensors = _tensors(folder)
    matrices = {name: math.prod(shape) for name, (_, shape) in tensors.items() if len(shape) == 2}
    head_name = EMBEDDINGS[0] if _is_tied(tensors) else "lm_head.weight"
    head = sum(count for name, count in matrices.items() if name.endswith(head_name))
    body = sum(count for name, count in matrices.items() if not name.endswith((*EMBEDDINGS, "lm_head.weight")))
    return body, head


def _tensors(folder: Path) -> dict[str, tuple[int, list[int]]]:
    """Bytes and shape by name."""
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in _read_header(file)}


def _is_tied(tensors: Iterable[str]) -> bool:
    return not any("lm_head" in name for name in tensors)


def _read_header(file: Path) -> list[tuple[str, tuple[int, list[int]]]]:
    """Eight bytes of length, then JSON with each tensor's place."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    return [
        (name, (entry["data_offsets"][1] - entry["data_offsets"][0], entry["shape"])) for name, entry in entries.items()
    ]
