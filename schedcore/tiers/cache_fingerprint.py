"""What a cached block depends on beside its tokens and salt: the weights, and how vectors are made and laid out."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

FORMAT = 1  # of the vectors: raised when the code computes or lays them out differently
SAMPLED_PIECES, PIECE_BYTES = 64, 1 << 16  # of each file, evenly spread: reading all of a large model takes too long


def cache_fingerprint(folder: Path | None, layout: dict[str, object], *, is_portable: bool = False) -> str:
    """layout: dtype, block size and the like. Equal fingerprints mean equal vectors for equal tokens.

    A checkpoint is known by its files' names, sizes and times of change, and by samples of their content. folder: None
    where it is none; then the layout says what model it is. is_portable: equal on machines that have
    equal files, each a copy of its own: times of change are left out.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(msgspec.json.encode([FORMAT, sorted((name, str(value)) for name, value in layout.items())]))
    for path in sorted(folder.iterdir()) if folder is not None else ():
        if path.is_file() and path.suffix in (".json", ".safetensors", ".gguf"):
            digest.update(_file_digest(path, is_portable=is_portable))
    return digest.hexdigest()


def _file_digest(path: Path, *, is_portable: bool) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        digest.update(msgspec.json.encode([path.name, status.st_size, 0 if is_portable else status.st_mtime_ns]))
        step = max(PIECE_BYTES, status.st_size // SAMPLED_PIECES)
        for offset in range(0, status.st_size, step):
            digest.update(os.pread(file.fileno(), PIECE_BYTES, offset))
    return digest.digest()
