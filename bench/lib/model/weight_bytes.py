"""How many bytes of weights a decode step reads."""

from __future__ import annotations

import json
import struct
from pathlib import Path

EMBEDDINGS = ("embed_tokens.weight", "embed_positions.weight")  # of which a step reads a row per token


def streamed_weight_bytes(folder: Path) -> int:
    """Of a checkpoint in safetensors format, as stored: all tensors but the embeddings, unless they are tied to the
    output.
    """
    sizes = {name: size for file in sorted(folder.glob("*.safetensors")) for name, size in _tensor_sizes(file)}
    is_tied = not any("lm_head" in name for name in sizes)
    return sum(size for name, size in sizes.items() if is_tied or not name.endswith(EMBEDDINGS))


def _tensor_sizes(file: Path) -> list[tuple[str, int]]:
    """The header: eight bytes of length, then JSON with each tensor's place."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    places = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
    return [(name, end - start) for name, (start, end) in places.items()]
